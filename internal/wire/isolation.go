package wire

// IsolationVar is the environment variable of a VM that gives the isolation of builds whose manager asks for none, as
// "steps serve --isolation" does.
const IsolationVar = "STEPMUX_ISOLATION"
