import { writeSync } from "node:fs";
import { isatty } from "node:tty";

/** One of the process's two outputs. */
export interface Sink {
  /** Returns when the text has left the process; throws the system's error where it cannot. */
  write(text: string): void;
  readonly isTerminal: boolean;
  /** Characters in a line. */
  readonly columns: number;
}

/** Results go to `out`, everything else (progress, logs, errors) to `err`. */
export interface Io {
  readonly out: Sink;
  readonly err: Sink;
}

const COLUMNS_DEFAULT = 100;
const BUSY_WAIT_MS = 1;

function codeOf(thrown: unknown): string | undefined {
  return (thrown as NodeJS.ErrnoException).code;
}

/** Blocks for a moment. Only for a pipe that somebody else made non-blocking, while it is full. */
function waitABit(): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, BUSY_WAIT_MS);
}

function writeAll(fd: number, bytes: Uint8Array): void {
  let at = 0;
  while (at < bytes.length) {
    try {
      at += writeSync(fd, bytes, at);
    } catch (thrown) {
      if (codeOf(thrown) !== "EAGAIN") throw thrown;
      waitABit();
    }
  }
}

/**
 * Written at once, not queued: the runtime's own streams lose what is queued when the process ends.
 */
function sinkOf(fd: 1 | 2): Sink {
  const encoder = new TextEncoder();
  const isTerminal = isatty(fd);
  let gone = false;
  return {
    write(text) {
      if (gone) return;
      try {
        writeAll(fd, encoder.encode(text));
      } catch (thrown) {
        // A reader that has seen enough (`| head`) is no failure: the rest is not written.
        if (codeOf(thrown) !== "EPIPE") throw thrown;
        gone = true;
      }
    },
    isTerminal,
    get columns() {
      if (!isTerminal) return COLUMNS_DEFAULT;
      return (fd === 1 ? process.stdout : process.stderr).columns || COLUMNS_DEFAULT;
    },
  };
}

export function processIo(): Io {
  return { out: sinkOf(1), err: sinkOf(2) };
}
