/* A libnvidia-ml.so.1 that says what a script file tells it to. The file (NVML_STUB) has lines "key value" and is
   read at every call, so a test changes the machine by writing the file. Devices are gpu0, gpu1, ... and gpu0.mig0, ...
   A value that is not in the file is NVML_ERROR_NOT_SUPPORTED. "driver 9" makes every call fail with 9,
   "gpu0.lost 15" every call on that GPU, "gpu0.temp.error 999" one call. "event id gpu xid instance" is one event. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char name[32]; } Device;
static Device devices[16], migs[16][8];
long seen_event_for_tests = 0;
#define seen_event seen_event_for_tests

static int text(const char *key, char *out, size_t size) {
  const char *path = getenv("NVML_STUB");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[512], name[128];
  int found = 0, used;
  if (!file) return 0;
  while (fgets(line, sizeof line, file)) {
    if (sscanf(line, "%127s %n", name, &used) == 1 && strcmp(name, key) == 0) {
      snprintf(out, size, "%s", line + used);
      out[strcspn(out, "\n")] = 0;
      found = 1;
    }
  }
  fclose(file);
  return found;
}

static int global(const char *key, long fallback) {
  char value[128];
  return text(key, value, sizeof value) ? atol(value) : fallback;
}

static int ask(Device *device, const char *what, unsigned long long *out) {
  char key[128], value[128];
  int failure = global("driver", 0);
  if (failure) return failure;
  snprintf(key, sizeof key, "%s.lost", device->name);
  if ((failure = global(key, 0))) return failure;
  snprintf(key, sizeof key, "%s.%s.error", device->name, what);
  if ((failure = global(key, 0))) return failure;
  snprintf(key, sizeof key, "%s.%s", device->name, what);
  if (!text(key, value, sizeof value)) return 3;
  if (out) *out = strtoull(value, NULL, 10);
  return 0;
}

static int name(Device *device, const char *what, char *out, unsigned size) {
  char key[128];
  int failure = ask(device, what, NULL);
  if (failure) return failure;
  snprintf(key, sizeof key, "%s.%s", device->name, what);
  text(key, out, size);
  return 0;
}

static int number(Device *device, const char *what, unsigned *out) {
  unsigned long long value = 0;
  int failure = ask(device, what, &value);
  if (!failure) *out = (unsigned)value;
  return failure;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return global("driver", 0); }
int nvmlShutdown(void) { return global("driver", 0); }
const char *nvmlErrorString(int code) { static char out[32]; snprintf(out, sizeof out, "stub error %d", code); return out; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
  if (global("driver", 0)) return global("driver", 0);
  if (!text("version", out, size)) snprintf(out, size, "stub");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned *out) { *out = global("count", 0); return global("driver", 0); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
  snprintf(devices[index].name, sizeof devices[index].name, "gpu%u", index);
  *out = &devices[index];
  return ask(*out, "uuid", NULL);
}
int nvmlDeviceGetUUID(Device *d, char *out, unsigned size) { return name(d, "uuid", out, size); }
int nvmlDeviceGetName(Device *d, char *out, unsigned size) { return name(d, "name", out, size); }

int nvmlDeviceGetMemoryInfo(Device *d, unsigned long long *out) {
  int failure = ask(d, "mem_total", &out[0]);
  if (failure) return failure;
  if ((failure = ask(d, "mem_used", &out[2]))) return failure;
  out[1] = out[0] - out[2];
  return 0;
}
int nvmlDeviceGetMemoryInfo_v2(Device *d, struct { unsigned version; unsigned long long total, reserved, free, used; } *out) {
  unsigned long long v1[3];
  int failure = global("no_v2", 0) ? 13 : nvmlDeviceGetMemoryInfo(d, v1);
  if (failure) return failure;
  out->total = v1[0]; out->free = v1[1]; out->used = v1[2]; out->reserved = 0;
  return 0;
}
int nvmlDeviceGetUtilizationRates(Device *d, unsigned *out) {
  int failure = number(d, "util", &out[0]);
  return failure ? failure : number(d, "mem_util", &out[1]);
}
int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *out) { (void)sensor; return number(d, "temp", out); }
int nvmlDeviceGetPowerUsage(Device *d, unsigned *out) { return number(d, "power", out); }
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *out) { return number(d, "power_limit", out); }
int nvmlDeviceGetCurrentClocksEventReasons(Device *d, unsigned long long *out) { return ask(d, "reasons", out); }
int nvmlDeviceGetTotalEccErrors(Device *d, int type, int counter, unsigned long long *out) {
  (void)type; (void)counter; return ask(d, "ecc", out);
}
int nvmlDeviceGetRemappedRows(Device *d, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
  *corr = *unc = *pending = 0; return number(d, "remap_failure", failed);
}
int nvmlDeviceGetPcieThroughput(Device *d, int counter, unsigned *out) {
  return number(d, counter == 0 ? "pcie_tx" : "pcie_rx", out);
}
typedef struct { unsigned field, scope; long long stamp, latency; unsigned type; int ret; unsigned long long value; } Field;
int nvmlDeviceGetFieldValues(Device *d, int count, Field *values) {
  for (int i = 0; i < count; i++) values[i].ret = ask(d, values[i].field == 138 ? "nvlink_tx" : "nvlink_rx", &values[i].value);
  return global("driver", 0);
}
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *out) {
  unsigned pid = 0;
  int failure = number(d, "pid", &pid);
  if (failure) return failure;
  if (!out || *count < 1) { *count = 1; return 7; }
  memset(out, 0, sizeof *out);
  out[0].pid = pid; *count = 1;
  return 0;
}
int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending) { *pending = 0; return number(d, "mig", current); }
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *out) { return number(d, "mig_max", out); }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **out) {
  Device *mig = &migs[d - devices][index];
  snprintf(mig->name, sizeof mig->name, "%.20s.mig%u", d->name, index);
  *out = mig;
  return ask(mig, "uuid", NULL) ? 6 : 0;
}
int nvmlDeviceGetGpuInstanceId(Device *d, unsigned *out) { return number(d, "instance", out); }
int nvmlDeviceGetSupportedEventTypes(Device *d, unsigned long long *out) { return ask(d, "events", out); }
int nvmlEventSetCreate(void **out) { *out = &seen_event; return global("driver", 0); }
int nvmlEventSetFree(void *set) { (void)set; return global("driver", 0); }
int nvmlDeviceRegisterEvents(Device *d, unsigned long long types, void *set) { (void)types; (void)set; return ask(d, "events", NULL); }
typedef struct { Device *device; unsigned long long type, data; unsigned gi, ci; } Event;
int nvmlEventSetWait_v2(void *set, Event *out, unsigned milliseconds) {
  char line[128];
  (void)set;
  for (unsigned waited = 0;; waited += 5) {
    long id; int gpu; unsigned long long xid; unsigned instance;
    if (global("driver", 0)) return global("driver", 0);
    if (text("event", line, sizeof line) && sscanf(line, "%ld %d %llu %u", &id, &gpu, &xid, &instance) == 4 && id > seen_event) {
      seen_event = id;
      out->device = &devices[gpu]; out->type = xid ? 8 : 2; out->data = xid; out->gi = instance; out->ci = 0xFFFFFFFF;
      return 0;
    }
    if (waited >= milliseconds) return 10;
    usleep(5000);
  }
}
