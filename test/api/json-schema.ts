/** A JSON schema of the OpenAPI description. */
export interface Schema {
  readonly [keyword: string]: unknown;
}

const NOTES: ReadonlySet<string> = new Set([
  ...["description", "title", "default", "examples", "format", "example"],
]);

type Check = (limit: never, value: unknown, at: string, schema: Schema) => string[];

const kindOf = (value: unknown) =>
  value === null ? "null" : Array.isArray(value) ? "array" : typeof value;

function object(value: unknown): Readonly<Record<string, unknown>> {
  return kindOf(value) === "object" ? (value as Record<string, unknown>) : {};
}

const when = (fails: boolean, at: string, what: string) => (fails ? [`${at}: ${what}`] : []);

/** The check of each keyword. A keyword outside this table is an error. */
const CHECKS: Readonly<Record<string, Check>> = {
  type: (types: string | string[], value, at) => {
    const kind = kindOf(value);
    const fits = [types]
      .flat()
      .some((type) => (type === "integer" ? Number.isInteger(value) : kind === type));
    return when(!fits, at, `${kind} is no ${types}`);
  },
  const: (wanted: unknown, value, at) => when(value !== wanted, at, `not ${wanted}`),
  enum: (wanted: unknown[], value, at) => when(!wanted.includes(value), at, `not of ${wanted}`),
  anyOf: (schemas: Schema[], value, at) => {
    const found = schemas.map((one) => faultsOf(one, value, at));
    return found.some((faults) => faults.length === 0) ? [] : found.flat();
  },
  properties: (properties: Record<string, Schema>, value, at) =>
    Object.entries(properties).flatMap(([name, schema]) =>
      Object.hasOwn(object(value), name)
        ? faultsOf(schema, object(value)[name], `${at}.${name}`)
        : [],
    ),
  // Stricter than the standard: examples must not have undescribed fields.
  additionalProperties: () => [],
  patternProperties: (patterns: Record<string, Schema>, value, at) =>
    Object.values(patterns).flatMap((schema) =>
      Object.entries(object(value)).flatMap(([name, one]) =>
        faultsOf(schema, one, `${at}.${name}`),
      ),
    ),
  items: (schema: Schema, value, at) =>
    Array.isArray(value) ? value.flatMap((one, i) => faultsOf(schema, one, `${at}[${i}]`)) : [],
  // The following keywords ignore values of another type.
  required: (names: string[], value, at) =>
    kindOf(value) === "object"
      ? names.flatMap((name) => when(!Object.hasOwn(object(value), name), at, `no ${name}`))
      : [],
  minItems: (min: number, value, at) => when(Array.isArray(value) && value.length < min, at, "few"),
  maxItems: (max: number, value, at) =>
    when(Array.isArray(value) && value.length > max, at, "many"),
  minimum: (min: number, value, at) =>
    when(typeof value === "number" && value < min, at, `below ${min}`),
  maximum: (max: number, value, at) =>
    when(typeof value === "number" && value > max, at, `above ${max}`),
  multipleOf: (of: number, value, at) =>
    when(typeof value === "number" && value % of !== 0, at, "a fraction"),
  minLength: (min: number, value, at) =>
    when(typeof value === "string" && value.length < min, at, "short"),
  maxLength: (max: number, value, at) =>
    when(typeof value === "string" && value.length > max, at, "long"),
  pattern: (pattern: string, value, at) =>
    when(typeof value === "string" && !new RegExp(pattern).test(value), at, `not ${pattern}`),
};

/** Violations of a schema, one per line. */
export function faultsOf(schema: Schema, value: unknown, at = "$"): string[] {
  const faults = Object.entries(schema).flatMap(([keyword, limit]) => {
    if (NOTES.has(keyword)) return [];
    const check = CHECKS[keyword];
    return check === undefined
      ? [`${at}: unknown keyword ${keyword}`]
      : check(limit as never, value, at, schema);
  });
  const { properties } = schema as { properties?: object };
  const strange =
    properties === undefined
      ? []
      : Object.keys(object(value)).filter((name) => !Object.hasOwn(properties, name));
  return [...faults, ...strange.map((name) => `${at}: ${name} is not described`)];
}
