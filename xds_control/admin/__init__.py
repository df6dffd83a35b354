"""Admin and fleet services, HTTP endpoints, and the control process."""
