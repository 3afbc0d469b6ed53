import { type Kwargs, PythonError, type Value } from "../python/index.ts";

/** Arguments by their parameters' names; JavaScript's undefined where one is absent. */
export function bind(
  name: string,
  parameters: readonly string[],
  args: readonly Value[],
  kwargs: Kwargs,
): (Value | undefined)[] {
  if (args.length > parameters.length) {
    throw new PythonError(`${name}() takes at most ${parameters.length} arguments`);
  }
  const values: (Value | undefined)[] = parameters.map((_, i) => args[i]);
  for (const [key, value] of kwargs) {
    const at = parameters.indexOf(key);
    if (at < 0) throw new PythonError(`${name}() got an unexpected keyword argument '${key}'`);
    if (values[at] !== undefined) {
      throw new PythonError(`${name}() got multiple values for argument '${key}'`);
    }
    values[at] = value;
  }
  return values;
}

export function text(name: string, value: Value | undefined): string {
  if (typeof value === "string") return value;
  throw new PythonError(`${name}: expected a str`);
}
