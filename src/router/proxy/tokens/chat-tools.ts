import { dict, member, refusal } from "./chat-body.ts";
import type { Dict, Value } from "./python/index.ts";

/**
 * Tools as vLLM's request schema writes them out: its own order of keys, absent descriptions and
 * parameters as null, keys that it does not know left out. Null where the request has none.
 */
export function toolsOf(fields: Dict): Value {
  const tools = member(fields, "tools");
  if (tools === null) return null;
  if (!Array.isArray(tools) || tools.length === 0) throw refusal("tools is not a list of tools");
  return tools.map(toolOf);
}

function toolOf(tool: Value): Dict {
  const given = tool instanceof Map ? member(tool, "function") : null;
  if (!(tool instanceof Map && given instanceof Map)) throw refusal("a tool has no function");
  const deferred = member(tool, "defer_loading");
  const description = member(given, "description");
  const parameters = member(given, "parameters");
  if (parameters !== null && !(parameters instanceof Map)) {
    throw refusal("a tool's parameters are not an object");
  }
  const made = dict(
    ["name", member(given, "name")],
    ["description", description],
    ["parameters", parameters],
  );
  addGiven(made, "strict", member(given, "strict"));
  addGiven(made, "defer_loading", member(given, "defer_loading") ?? deferred);
  const outer = dict(["type", tool.get("type") ?? "function"], ["function", made]);
  addGiven(outer, "defer_loading", deferred);
  return outer;
}

function addGiven(to: Dict, key: string, value: Value): void {
  if (value !== null) to.set(key, value);
}
