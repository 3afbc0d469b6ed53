import { type Clock, HearthError, stringifyJson } from "../core/index.ts";

/**
 * Writes log lines. The message must be a constant, with the variable parts in fields, because the
 * flood limit counts lines by message. Logging never throws because of the logged values.
 */
export interface Logger extends Disposable {
  log(level: LogLevel, message: string, fields?: LogFields): void;
  error(message: string, fields?: LogFields): void;
  warn(message: string, fields?: LogFields): void;
  info(message: string, fields?: LogFields): void;
  debug(message: string, fields?: LogFields): void;
  /**
   * Returns a logger for the same output that adds these fields at the start of each line's fields.
   */
  child(fields: LogFields): Logger;
  setLevel(level: LogLevel): void;
  /** Number of lines that the flood limit has dropped since the start. */
  readonly dropped: number;
  /** Logs the numbers of dropped lines immediately and stops all timers. */
  [Symbol.dispose](): void;
}

export interface LoggerOptions {
  readonly level: LogLevel;
  readonly format: LogFormat;
  /** Called with each line, including its newline. */
  readonly write: (line: string) => void;
  readonly clock: Clock;
  /** Maximum lines with the same message per time window. Further ones are counted and dropped. */
  readonly burst?: number;
  readonly windowMs?: number;
}

const BURST = 20;
const WINDOW_MS = 10_000;
const MESSAGES_MAX = 512;
const OTHERS = "(other messages)";

interface Window {
  readonly level: LogLevel;
  startedMs: number;
  lines: number;
  dropped: number;
}

export function createLogger(options: LoggerOptions): Logger {
  return loggerWith(new CappedLog(options), {});
}

function loggerWith(log: CappedLog, own: LogFields): Logger {
  const at =
    (level: LogLevel) =>
    (message: string, fields: LogFields = {}) =>
      log.write(level, message, { ...own, ...fields });
  return {
    log: (level, message, fields) => at(level)(message, fields),
    error: at("error"),
    warn: at("warn"),
    info: at("info"),
    debug: at("debug"),
    child: (fields) => loggerWith(log, { ...own, ...fields }),
    setLevel: (level) => log.setLevel(level),
    get dropped() {
      return log.dropped;
    },
    [Symbol.dispose]: () => log.close(),
  };
}

/** Limits lines to `burst` per message and time window. Counts at most 512 messages separately. */
class CappedLog {
  readonly #options: LoggerOptions;
  readonly #burst: number;
  readonly #windowMs: number;
  readonly #windows = new Map<string, Window>();
  #levelRank: number;
  #sweep: Disposable | null = null;
  dropped = 0;

  constructor(options: LoggerOptions) {
    this.#options = options;
    this.#burst = options.burst ?? BURST;
    this.#windowMs = options.windowMs ?? WINDOW_MS;
    this.#levelRank = LOG_LEVELS.indexOf(options.level);
  }

  setLevel(level: LogLevel): void {
    this.#levelRank = LOG_LEVELS.indexOf(level);
  }

  write(level: LogLevel, message: string, fields: LogFields): void {
    if (LOG_LEVELS.indexOf(level) > this.#levelRank) return;
    const window = this.#windowOf(level, message);
    if (window.lines >= this.#burst) {
      window.dropped++;
      this.dropped++;
      this.#sweep ??= this.#options.clock.after(this.#windowMs, () => this.#reportAll());
      return;
    }
    window.lines++;
    this.#put(level, message, fields);
  }

  close(): void {
    for (const [message, window] of this.#windows) this.#tell(message, window);
    this.#stopSweep();
  }

  #windowOf(level: LogLevel, message: string): Window {
    const isKnown = this.#windows.has(message) || this.#windows.size < MESSAGES_MAX;
    const key = isKnown ? message : OTHERS;
    const nowMs = this.#options.clock.monotonicMs();
    let window = this.#windows.get(key);
    if (window === undefined) {
      window = { level, startedMs: nowMs, lines: 0, dropped: 0 };
      this.#windows.set(key, window);
    } else if (nowMs - window.startedMs >= this.#windowMs) {
      this.#tell(key, window);
      window.startedMs = nowMs;
      window.lines = 0;
    }
    return window;
  }

  /**
   * Logs the numbers of lines dropped in windows that have ended. Schedules itself again while
   * other windows are open.
   */
  #reportAll(): void {
    this.#stopSweep();
    const nowMs = this.#options.clock.monotonicMs();
    let isWaiting = false;
    for (const [message, window] of this.#windows) {
      if (nowMs - window.startedMs >= this.#windowMs) this.#tell(message, window);
      else isWaiting ||= window.dropped > 0;
    }
    if (!isWaiting) return;
    this.#sweep = this.#options.clock.after(this.#windowMs, () => this.#reportAll());
  }

  #tell(message: string, window: Window): void {
    if (window.dropped === 0) return;
    const fields = { like: message, count: window.dropped };
    window.dropped = 0;
    this.#put(window.level, "log lines dropped", fields);
  }

  #stopSweep(): void {
    this.#sweep?.[Symbol.dispose]();
    this.#sweep = null;
  }

  #put(level: LogLevel, message: string, fields: LogFields): void {
    const { clock, format, write } = this.#options;
    const time = new Date(clock.wallMs()).toISOString();
    write(`${formatLine(format, time, level, message, fields)}\n`);
  }
}

export const LOG_LEVELS = ["error", "warn", "info", "debug"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];
export type LogFormat = "text" | "json";
/**
 * Variable parts of a line. They are separate from the message so that messages are constant and
 * can be counted.
 */
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
 * Returns one line without its newline. Its content cannot control terminals or confuse log
 * collectors, whatever the fields contain.
 */
function formatLine(
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

/**
 * Returns code and fix of a HearthError as fields. For other errors, which are unexpected, returns
 * the source position.
 */
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

/**
 * Returns true if the field's name suggests a secret: `apiToken`, `api_token` or `api-token`, but
 * not `block_tokens` or `token_file`.
 */
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
    // Logging must not fail, so a value that cannot be serialized is replaced by a description.
    return `[${typeof value} without JSON form: ${error instanceof Error ? error.message : "?"}]`;
  }
}

/** Removes credentials in URLs and headers, and truncates long text. */
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

/** Escapes characters that begin a new line, move the cursor or change a terminal's colors. */
function escapeControls(text: string): string {
  return text.replace(
    // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it looks for
    /[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
