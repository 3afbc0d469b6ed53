import { HearthError, stringifyJson } from "../core/index.ts";

export const LOG_LEVELS = ["error", "warn", "info", "debug"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];
export type LogFormat = "text" | "json";
/** What varies goes into fields, so that the message stays the same and can be counted. */
export type LogFields = Readonly<Record<string, unknown>>;

const FIELDS_MAX = 32;
const VALUE_CHARACTERS_MAX = 1_024;
const STACK_CHARACTERS_MAX = 4_096;
const SECRET_NAME =
  /(?:^|_)(?:token|secret|password|passphrase|authorization|cookie|credentials?)$/;
const REDACTED = "[redacted]";
const RESERVED: ReadonlySet<string> = new Set(["time", "level", "message"]);

type Plain = string | number | bigint | boolean | null;

/**
 * One line without its newline, safe to write to a terminal or a collector whatever the fields
 * hold.
 */
export function formatLine(
  format: LogFormat,
  time: string,
  level: LogLevel,
  message: string,
  fields: LogFields,
): string {
  const plain = plainFields(fields);
  if (format === "json") return escapeControls(stringifyJson({ time, level, message, ...plain }));
  const parts = Object.entries(plain).map(([name, value]) => ` ${name}=${shownValue(value)}`);
  return `${time} ${level.padEnd(5)} ${escapeControls(message)}${parts.join("")}`;
}

function plainFields(fields: LogFields): Record<string, Plain> {
  const plain: Record<string, Plain> = {};
  for (const [name, value] of Object.entries(fields).slice(0, FIELDS_MAX)) {
    if (value === undefined) continue;
    const key = RESERVED.has(name) ? `${name}_` : name;
    if (value instanceof Error) Object.assign(plain, errorFields(key, value));
    else plain[key] = isSecret(name) ? REDACTED : plainValue(value);
  }
  return plain;
}

/** Code and fix of a fault of ours; of anything else the place, since it was not foreseen. */
function errorFields(name: string, error: Error): Record<string, Plain> {
  const fields: Record<string, Plain> = { [name]: cut(error.message, VALUE_CHARACTERS_MAX) };
  if (!(error instanceof HearthError)) {
    if (error.stack !== undefined) fields.stack = cut(error.stack, STACK_CHARACTERS_MAX);
    return fields;
  }
  fields.code = error.code;
  if (error.fix !== undefined) fields.fix = cut(error.fix, VALUE_CHARACTERS_MAX);
  if (error.cause instanceof Error) fields.cause = cut(error.cause.message, VALUE_CHARACTERS_MAX);
  return fields;
}

/** `apiToken`, `api_token`, `api-token`; but not `block_tokens` or `token_file`. */
function isSecret(name: string): boolean {
  const snake = name.replace(/([a-z0-9])([A-Z])/g, "$1_$2").replaceAll("-", "_");
  return SECRET_NAME.test(snake.toLowerCase());
}

function plainValue(value: unknown): Plain {
  switch (typeof value) {
    case "number":
    case "bigint":
    case "boolean":
      return value;
    case "string":
      return cut(value, VALUE_CHARACTERS_MAX);
    default:
      return value === null ? null : cut(objectText(value), VALUE_CHARACTERS_MAX);
  }
}

function objectText(value: unknown): string {
  try {
    return stringifyJson(value) ?? String(value);
  } catch (error) {
    // A log line never fails: what cannot be written down is named instead.
    return `[${typeof value} that is no JSON: ${error instanceof Error ? error.message : "?"}]`;
  }
}

/** Credentials inside URLs and headers go; the rest is cut where it is too long. */
function cut(text: string, charactersMax: number): string {
  const safe = text
    .slice(0, charactersMax)
    .replace(/\/\/[^/@\s]+:[^/@\s]*@/g, `//${REDACTED}@`)
    .replace(/\bBearer\s+\S+/gi, `Bearer ${REDACTED}`);
  return text.length > charactersMax ? `${safe}...` : safe;
}

function shownValue(value: Plain): string {
  const text = String(value);
  const isBare = typeof value !== "string" || /^[\w.:/@%+,-]+$/.test(text);
  return isBare ? text : escapeControls(JSON.stringify(text));
}

/** What would begin a line, move a cursor or colour a terminal. */
function escapeControls(text: string): string {
  return text.replace(
    // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it looks for
    /[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
