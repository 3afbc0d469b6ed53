import type { Clock } from "../core/index.ts";
import {
  formatLine,
  LOG_LEVELS,
  type LogFields,
  type LogFormat,
  type LogLevel,
} from "./log-line.ts";

export { LOG_LEVELS, type LogFields, type LogFormat, type LogLevel } from "./log-line.ts";

/**
 * Writes lines. A message is a constant, what varies is in its fields: messages are what the flood
 * cap counts. Logging never throws because of what is logged.
 */
export interface Logger extends Disposable {
  log(level: LogLevel, message: string, fields?: LogFields): void;
  error(message: string, fields?: LogFields): void;
  warn(message: string, fields?: LogFields): void;
  info(message: string, fields?: LogFields): void;
  debug(message: string, fields?: LogFields): void;
  /** The same log; each line begins with these fields. */
  child(fields: LogFields): Logger;
  setLevel(level: LogLevel): void;
  /** Lines left out since the start. */
  readonly dropped: number;
  /** Says at once what was left out and is not yet said; nothing is timed any more. */
  [Symbol.dispose](): void;
}

export interface LoggerOptions {
  readonly level: LogLevel;
  readonly format: LogFormat;
  /** Takes one line with its newline. */
  readonly write: (line: string) => void;
  readonly clock: Clock;
  /** Lines of one message in a window; what is beyond is counted and left out. */
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

/** At most `burst` lines of one message in a window, of at most 512 messages. */
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
      this.#sweep ??= this.#options.clock.after(this.#windowMs, () => this.#tellAll());
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

  /** Says what windows that are over left out; looks again while some are not. */
  #tellAll(): void {
    this.#stopSweep();
    const nowMs = this.#options.clock.monotonicMs();
    let isWaiting = false;
    for (const [message, window] of this.#windows) {
      if (nowMs - window.startedMs >= this.#windowMs) this.#tell(message, window);
      else isWaiting ||= window.dropped > 0;
    }
    if (!isWaiting) return;
    this.#sweep = this.#options.clock.after(this.#windowMs, () => this.#tellAll());
  }

  #tell(message: string, window: Window): void {
    if (window.dropped === 0) return;
    const fields = { like: message, count: window.dropped };
    window.dropped = 0;
    this.#put(window.level, "more lines of one kind were left out", fields);
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
