/** True where a skip must be a failure: under CI, or when the one switch asks for it. */
export function isRequired(what: "NATIVE" | "PYTHON" | "NATS" | "PYZMQ" | "VERBS_HEADER"): boolean {
  return process.env.CI === "true" || process.env[`REQUIRE_${what}`] === "1";
}
