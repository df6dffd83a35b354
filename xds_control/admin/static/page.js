// The page of xds-control: reads api/v1 and shows it. Everything is set as text, nothing as markup.
"use strict";

const TABS = {fleet: "Fleet", requests: "Requests", try: "Try a request", events: "Events", peers: "Envoys and processors"};
const HISTORY = 120;
const shares = new Map(); // endpoint → its latest shares of the weights
let token = sessionStorage.getItem("token") || "";
let opened = null; // what the side panel shows: a function that draws it again
let filter = {pool: "", notable: ""};

function h(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((one) => one !== null && one !== undefined));
  return made;
}

async function call(path, options) {
  const headers = token ? {authorization: `Bearer ${token}`} : {};
  const answer = await fetch(`api/v1/${path}`, {...options, headers});
  const value = await answer.json();
  if (answer.ok) return value;
  const error = new Error(value.message || answer.statusText);
  error.status = answer.status;
  throw error;
}

// Values as people read them; a value that is not known is a dash, never a zero.

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const percent = (value, digits = 0) => (isNumber(value) ? `${(100 * value).toFixed(digits)} %` : "–");
function number(value) {
  if (!isNumber(value)) return "–";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1);
  return Math.abs(value) >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toPrecision(3);
}
function seconds(value) {
  if (!isNumber(value)) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value.toPrecision(3)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}
const count = (value, name) => `${value} ${name}${value === 1 ? "" : "s"}`;
const clock = (unix) => (unix ? new Date(unix * 1000).toLocaleTimeString("en-GB") : "–");
function size(value) {
  if (!isNumber(value)) return "–";
  return value < 1048576 ? `${(value / 1024).toFixed(1)} KiB` : `${(value / 1048576).toFixed(0)} MiB`;
}
const orderOf = ({override}) => (override ? `${override.kind} by ${override.by}${override.reason ? `: ${override.reason}` : ""}` : "");
const stateOf = (one) => (one.state === "gone" && one.override && one.override.kind === "drain" ? "drained" : one.state);

// Parts of the page.

function table(columns, rows, empty = "none") {
  const head = columns.map((name) => h("th", {class: name.startsWith(">") ? "n" : null, scope: "col"}, name.replace(/^>/, "")));
  const body = rows.map(({cells, open, key}) =>
    h("tr", open ? {tabindex: 0, "data-key": key, onclick: open, onkeydown: (event) => event.key === "Enter" && open()} : {},
      cells.map((cell, at) => (cell instanceof HTMLTableCellElement ? cell : h("td", {class: columns[at].startsWith(">") ? "n" : null}, cell)))));
  if (!body.length) return h("p", {class: "quiet"}, empty);
  return h("div", {class: "scroll"}, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return h("dl", {}, shown.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function shareCell(share, text) {
  const bar = h("i", {});
  bar.style.width = `${Math.min(100, 100 * (share || 0))}%`;
  return h("td", {class: "share"}, bar, h("b", {}, text));
}

function spark(values) {
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  picture.setAttribute("class", "spark");
  picture.setAttribute("viewBox", `0 0 ${HISTORY} 20`);
  picture.setAttribute("preserveAspectRatio", "none");
  const line = document.createElementNS(space, "polyline");
  const top = Math.max(...values, 1e-9);
  line.setAttribute("points", values.map((value, at) => `${at + HISTORY - values.length},${19 - 18 * (value / top)}`).join(" "));
  picture.append(line);
  return picture;
}

// The side panel follows the address: `#fleet/10.0.0.11:8000`, `#requests/ID`.
const openDetail = (name, what) => { location.hash = `${name}/${encodeURIComponent(what)}`; };
const close = () => { location.hash = tab(); };

function follow() {
  const what = decodeURIComponent(location.hash.slice(tab().length + 2));
  const draw = DETAILS[tab()];
  opened = what && draw ? () => draw(what) : null;
  if (!opened) document.getElementById("detail").hidden = true;
}

async function drawDetail() {
  const aside = document.getElementById("detail");
  const draw = opened;
  if (!draw) return;
  let content;
  try {
    content = await draw();
  } catch (error) {
    if (error.status === undefined || error.status === 401) throw error;
    content = h("p", {class: "bad"}, error.message);
  }
  if (draw !== opened) return;
  const place = aside.hidden ? 0 : aside.scrollTop;
  aside.replaceChildren(h("button", {class: "close", onclick: close}, "Close"), ...[content].flat().filter(Boolean));
  aside.hidden = false;
  aside.scrollTop = place;
}

// Fleet.

function signal(endpoint, name) {
  const found = endpoint.signals.find((one) => one.name === name && one.used);
  return found && found.fresh > 0 ? found.value : null;
}

async function fleet() {
  const [pools, endpoints] = await Promise.all([call("pools"), call("endpoints")]);
  for (const one of endpoints.endpoints) {
    const kept = shares.get(one.address) || [];
    kept.push(one.weight_share);
    shares.set(one.address, kept.slice(-HISTORY));
  }
  const there = new Set(endpoints.endpoints.map((one) => one.address));
  for (const address of shares.keys()) if (!there.has(address)) shares.delete(address);
  const columns = ["Endpoint", "State", "Weight", "Trend", "Traffic", ">Running", ">Waiting", ">KV used", ">KV hits", ">GPU memory", ">TTFT p50", ">p90", ">SLO", "Why"];
  const unknown = (rows, name) => columns[name].startsWith(">") && rows.every((row) => row.cells[name] === "–");
  return pools.pools.map((pool) => {
    const members = endpoints.endpoints.filter((one) => one.pool === pool.name);
    const traffic = pool.traffic || {};
    const about = [
      pool.models.join(", "), `${pool.serving} of ${pool.endpoints} serve`, `${number(traffic.requests_per_s)} requests/s`,
      `TTFT p90 ${seconds(traffic.ttft && traffic.ttft.p90)}`, `SLO met ${percent(traffic.slo_attainment, 1)}`,
    ].filter(Boolean).join(" · ");
    const rows = members.map(endpointRow);
    const shown = columns.map((_, at) => at).filter((at) => !unknown(rows, at));
    const narrowed = rows.map((row) => ({...row, cells: shown.map((at) => row.cells[at])}));
    return h("section", {}, h("h2", {}, pool.name, " ", h("span", {class: "quiet"}, about)), table(shown.map((at) => columns[at]), narrowed, "no endpoints"));
  });
}

function endpointRow(one) {
  const now = one.traffic || {};
  const ttft = now.ttft || {};
  const level = one.priority ? `, level ${one.priority}` : "";
  const order = one.override && !one.why.includes(`by ${one.override.by}`) ? orderOf(one) : "";
  return {
    key: one.address,
    open: () => openDetail("fleet", one.address),
    cells: [
      h("td", {class: "name"}, one.name && one.name !== one.address ? `${one.name} (${one.address})` : one.address),
      h("span", {class: stateOf(one)}, stateOf(one)),
      shareCell(one.weight_share, `${one.weight} (${percent(one.weight_share)}${level})`),
      spark(shares.get(one.address) || []),
      shareCell(now.share, `${percent(now.share)} · ${number(now.requests_per_s)}/s`),
      number(signal(one, "running")), number(signal(one, "waiting")), percent(signal(one, "kv_usage")),
      percent(isNumber(now.kv_hit_ratio) ? now.kv_hit_ratio : signal(one, "kv_hit_ratio")), percent(signal(one, "gpu_mem_used_ratio")),
      seconds(ttft.p50), seconds(ttft.p90), percent(now.slo_attainment),
      h("td", {class: "why"}, [order, one.gates.length ? `gates: ${one.gates.join(", ")}` : "", one.why].filter(Boolean).join("; ")),
    ],
  };
}

function engineOf(one) {
  if (one.engine !== "auto") return one.engine;
  const found = one.signals.find((part) => part.used && ["running", "waiting", "kv_usage"].includes(part.name));
  return `auto: ${found ? found.source : "not known yet"}`;
}

async function endpoint(address) {
  const name = encodeURIComponent(address);
  const [found, events] = await Promise.all([
    call(`endpoints?endpoint=${name}&explain=true&all_sources=true`), call(`events?endpoint=${name}&limit=20`)]);
  const one = found.endpoints[0];
  const why = one.explanation || {factors: [], terms: [], stages: []};
  const factor = (part) => ({cells: [part.name, part.signal, number(part.value), seconds(part.age_s), percent(part.confidence), number(part.factor)]});
  const columns = ["Factor", "Signal", ">Value", ">Age", ">Trust", ">Factor"];
  return [
    h("h2", {}, one.name || one.address),
    facts([
      ["address", one.address], ["pool", one.pool], ["state", `${stateOf(one)} for ${seconds(one.state_age_s)}${one.state_reason ? `: ${one.state_reason}` : ""}`],
      ["engine", engineOf(one)], ["role", one.role === "both" ? "" : one.role], ["models", one.models.join(", ")], ["adapters", one.loras.join(", ")],
      ["capacity", number(one.capacity)], ["gates", one.gates.join(", ")], ["held", one.held],
      ["order", orderOf(one)],
    ]),
    h("h3", {}, `Why the weight is ${one.weight}`),
    h("p", {class: "quiet"}, why.why || one.why),
    table(columns, why.factors.map(factor)),
    why.terms.length ? table(columns, why.terms.map(factor)) : null,
    table(["Then", ">Weight"], [{cells: ["product of the factors", number(why.raw)]}, ...why.stages.map((stage) => ({cells: [stage.name, number(stage.value)]}))]),
    h("h3", {}, "Signals"),
    table(["Signal", ">Value", "Unit", ">Age", ">Fresh", "Source"], one.signals.map((part) => ({cells: [
      part.name, number(part.value), part.unit, seconds(part.age_s), percent(part.fresh), part.source + (part.used ? " (counts)" : "") + (part.disagrees ? " (disagrees)" : "")]}))),
    h("h3", {}, "Events"),
    eventTable(events.events.slice().reverse()),
  ];
}

// Requests.

async function requests() {
  const query = new URLSearchParams({limit: 100});
  if (filter.notable) query.append("notable", filter.notable);
  const found = await call(`requests?${query}`);
  const choose = h("select", {onchange: (event) => { filter.notable = event.target.value; draw(); }},
    ["", "slow", "failed", "fell-back", "rejected", "sampled"].map((name) => h("option", {value: name, selected: name === filter.notable ? "" : null}, name || "all kept")));
  const rows = found.requests.map((one) => {
    const outcome = one.outcome || {};
    return {key: one.id, open: () => openDetail("requests", one.id), cells: [
      clock(one.at_unix_s), one.id, one.notable, one.decision.pool, one.facts.model, one.facts.tenant, one.decision.rule,
      number(one.facts.prompt_tokens), number(one.decision.matched_tokens), one.decision.destinations[0] || "", outcome.endpoint || "",
      outcome.kind ? h("span", {class: outcome.kind === "ok" ? "ok" : "bad"}, outcome.kind) : "", seconds(outcome.ttft_s), seconds(outcome.e2e_s)]};
  });
  return [
    h("div", {class: "bar"}, h("label", {}, "Show ", choose), h("span", {class: "quiet"}, "No prompt text is kept."),
      found.unreachable.length ? h("span", {class: "warn"}, `${found.unreachable.join(", ")} did not answer`) : null),
    table(["At", "Request", "Kept as", "Pool", "Model", "Tenant", "Rule", ">Prompt tokens", ">Matched", "Picked", "Served by", "Outcome", ">TTFT", ">Total"], rows,
      "None is kept: kept are a sample and those that were slow, failed, fell back or were refused."),
  ];
}

function explained(one) {
  const read = one.facts, decided = one.decision, outcome = one.outcome;
  const parts = ["cost_s", "expected_ttft_s", "wait_s", "prefill_s", "kv_wait_s", "interference_s", "decode_s", "memory_s", "fixed_s"];
  return [
    h("h2", {}, one.dry_run ? "What would happen" : `Request ${one.id}`),
    h("p", {}, one.why),
    h("h3", {}, "Read"),
    facts([
      ["api", read.api], ["path", read.path], ["model", read.model], ["class", read.service_class], ["tenant", read.tenant],
      ["prompt", `${number(read.prompt_tokens)} tokens${read.tokens_exact ? "" : " (estimated)"}, ${number(read.prompt_bytes)} bytes, ${count(read.messages, "message")}`],
      ["output", `${number(read.expected_output_tokens)} tokens expected${read.max_output_tokens ? `, limit ${number(read.max_output_tokens)}` : ""}`],
      ["session", read.session_key && `${read.session_key} from ${read.session_source}`], ["prefix", read.prefix_key && `${count(read.prefix_blocks, "block")}, last ${read.prefix_key}`],
      ["adapter", read.lora], ["tags", read.tags.join(", ")], ["problem", [read.problem, read.detail].filter(Boolean).join(": ")],
    ]),
    h("h3", {}, "Decided"),
    facts([
      ["reason", decided.reason], ["rule", decided.rule], ["route", decided.route], ["pool", decided.pool], ["model", decided.model], ["class", decided.service_class],
      ["picked", decided.destinations.join(", ")], ["prefill", decided.prefill], ["matched", decided.matched_tokens ? `${number(decided.matched_tokens)} tokens` : ""],
      ["cost", isNumber(decided.cost_s) ? seconds(decided.cost_s) : ""], ["expected TTFT", isNumber(decided.expected_ttft_s) ? seconds(decided.expected_ttft_s) : ""],
      ["headers", Object.entries(decided.headers).map((pair) => pair.join(": ")).join(", ")], ["status", decided.status || ""],
    ]),
    one.candidates.length ? h("h3", {}, `Candidates (${one.candidates.length} of ${one.endpoints})`) : null,
    one.candidates.length ? table(["Endpoint", ...parts.map((name) => `>${name.replace(/_s$/, "").replaceAll("_", " ")}`), ">Matched", ">In flight", "Out because"],
      one.candidates.map((candidate) => ({cells: [candidate.endpoint, ...parts.map((name) => seconds(candidate[name])), number(candidate.matched_tokens), number(candidate.in_flight), candidate.excluded]}))) : null,
    outcome ? h("h3", {}, "Ended") : null,
    outcome ? facts([
      ["outcome", `${outcome.kind} ${outcome.status || ""}`], ["served by", outcome.endpoint], ["attempts", number(outcome.attempts)],
      ["tokens", `${number(outcome.prompt_tokens)} prompt (${number(outcome.cached_tokens)} cached), ${number(outcome.completion_tokens)} answer`],
      ["TTFT", seconds(outcome.ttft_s)], ["decode", seconds(outcome.decode_s)], ["queue", seconds(outcome.queue_s)], ["total", seconds(outcome.e2e_s)],
    ]) : null,
  ].filter(Boolean);
}

const EXAMPLE = '{"model": "", "messages": [{"role": "user", "content": "hello"}]}';

function tryOne() {
  const path = h("input", {value: "/v1/chat/completions", spellcheck: "false"});
  const headers = h("textarea", {rows: 3, placeholder: "x-session-id: 42", spellcheck: "false"});
  const body = h("textarea", {spellcheck: "false"}, EXAMPLE);
  const result = h("div", {});
  async function run(event) {
    event.preventDefault();
    try {
      const given = {};
      for (const line of headers.value.split("\n").filter((one) => one.includes(":"))) {
        given[line.slice(0, line.indexOf(":")).trim().toLowerCase()] = line.slice(line.indexOf(":") + 1).trim();
      }
      const asked = JSON.stringify({path: path.value, headers: given, body: body.value});
      result.replaceChildren(...explained((await call("explain", {method: "POST", body: asked})).explanation));
    } catch (error) {
      result.replaceChildren(h("p", {class: "bad"}, error.message));
    }
  }
  return h("form", {onsubmit: run}, h("p", {class: "quiet"}, "Decided as the live fleet would decide it now, and sent nowhere."),
    h("label", {}, "Path", h("br"), path), h("label", {}, "Headers, one a line", headers), h("label", {}, "Body", body), h("button", {}, "Explain"), result);
}

// Events, Envoys, processors.

function eventTable(events) {
  return table(["At", "Kind", "Endpoint", "Before", "After", "Reason", "By"], events.map((one) => ({cells: [
    clock(one.at_unix_s), one.kind, one.endpoint || one.pool, one.before, h("span", {class: one.after}, one.after), one.reason, one.by]})), "nothing has happened yet");
}

async function events() {
  return eventTable((await call("events?limit=200")).events.slice().reverse());
}

async function peers() {
  const [clients, processors] = await Promise.all([call("clients"), call("processors")]);
  const types = clients.clients.flatMap((client) => client.types.map((type) => ({cells: [
    client.node_id || client.peer, client.protocol, type.type, number(type.held), type.version_acked === type.version_sent ? h("span", {class: "ok"}, "in step") : h("span", {class: "warn"}, `behind ${seconds(type.lag_s)}`),
    number(type.nacks), type.rejected.join(", "), type.last_error]})));
  return [
    h("h2", {}, "Envoys"), table(["Node", "Protocol", "Type", ">Held", "State", ">NACKs", "Rejected", "Its words"], types, "no Envoy is connected"),
    h("h2", {}, "Processors"), table(["Processor", "Address", "Policy", ">Snapshots behind", ">Last report", ">Streams", ">Requests", ">CPU s", ">Loop lag", ">Memory", ">Index", ">In flight"],
      processors.processors.map((one) => ({cells: [one.name, one.address, one.policy_version, number(one.snapshots_behind), seconds(one.last_report_age_s), number(one.streams),
        number(one.requests), number(one.cpu_seconds), seconds(one.loop_lag_s), size(one.rss_bytes), size(one.prefix_index_bytes), number(one.outstanding)]})),
      "no processor: Envoy routes by its defaults and balances by weights"),
  ];
}

// Drawing.

const VIEWS = {fleet, requests, try: tryOne, events, peers};
const DETAILS = {fleet: endpoint, requests: async (id) => explained((await call(`explain?request_id=${encodeURIComponent(id)}`)).explanation)};
function tab() {
  const [name] = location.hash.slice(1).split("/");
  return VIEWS[name] ? name : "fleet";
}
let drawing = 0;
let drawn = "";

async function head() {
  const status = await call("status");
  const health = document.getElementById("health");
  health.textContent = status.ready ? "ready" : "not ready";
  health.className = `pill ${status.ready ? "good" : "bad"}`;
  document.getElementById("summary").textContent = [
    `policy ${status.policy_version}`, status.shadow_version && `shadow ${status.shadow_version}`, `snapshot ${status.snapshot_version}`,
    count(status.endpoints, "endpoint"), count(status.xds_clients, "Envoy"), count(status.processors, "processor"), `${number(status.requests_per_s)} requests/s`,
    `up ${seconds(status.uptime_s)}`].filter(Boolean).join(" · ");
  return status.problems;
}

function askForToken(message) {
  const field = h("input", {type: "password", autocomplete: "off"});
  const enter = (event) => { event.preventDefault(); token = field.value.trim(); sessionStorage.setItem("token", token); draw(); };
  return h("form", {onsubmit: enter}, h("p", {}, `${message}: one of those that the policy names for the admin port`), h("label", {}, "Token ", field), h("button", {}, "Look"));
}

async function draw() {
  const turn = ++drawing;
  const name = tab();
  document.getElementById("tabs").replaceChildren(...Object.entries(TABS).map(([key, text]) => h("a", {href: `#${key}`, "aria-current": key === name ? "page" : null}, text)));
  const main = document.getElementById("main");
  let problems = [];
  try {
    problems = await head();
    if (name === "try" && drawn === "try") return;
    const content = await VIEWS[name]();
    await drawDetail();
    if (turn !== drawing) return;
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.key : null;
    main.replaceChildren(...[content].flat());
    drawn = name;
    if (focused) for (const row of main.querySelectorAll("tr[data-key]")) if (row.dataset.key === focused) row.focus();
  } catch (error) {
    if (turn !== drawing) return;
    if (error.status === 401 && drawn !== "token") {
      main.replaceChildren(askForToken(error.message));
      drawn = "token";
    } else if (error.status !== 401) problems = [`control does not answer: ${error.message}`];
  } finally {
    if (turn === drawing) document.getElementById("problems").textContent = problems.join("; ");
  }
}

window.addEventListener("hashchange", () => { follow(); draw(); });
document.addEventListener("keydown", (event) => event.key === "Escape" && opened && close());
document.addEventListener("visibilitychange", () => document.hidden || draw());
setInterval(() => document.hidden || document.activeElement instanceof HTMLSelectElement || draw(), 1000);
follow();
draw();
