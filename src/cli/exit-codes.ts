import { type ErrorCode, HearthError } from "../core/index.ts";

/** How `hearth` can end. The numbers are stable: scripts and service managers rely on them. */
export const EXIT_CODES = {
  ok: { code: 0, meaning: "done" },
  failed: { code: 1, meaning: "failed; standard error says why" },
  usage: { code: 2, meaning: "the command line was refused" },
  configRefused: { code: 3, meaning: "the configuration was refused" },
  hostCannot: { code: 4, meaning: "this host cannot: native library, memory, kernel" },
  wrongBytes: { code: 5, meaning: "bytes read were not the bytes written" },
  partly: { code: 6, meaning: "done in part: blocks are missing, held, deferred or refused" },
  refused: { code: 7, meaning: "the agent refused the command; nothing changed" },
  noAnswer: { code: 8, meaning: "no answer: nobody is there, or the deadline passed" },
  interrupted: { code: 130, meaning: "interrupted by SIGINT, SIGTERM or SIGHUP" },
} as const satisfies Record<string, { code: number; meaning: string }>;

export type ExitName = keyof typeof EXIT_CODES;

/** Which way out a fault takes. */
export const EXIT_OF_ERROR = {
  CONFIG_INVALID: "configRefused",
  USAGE: "usage",
  NATIVE_UNAVAILABLE: "hostCannot",
  NATIVE_ABI_MISMATCH: "hostCannot",
  NATIVE_FAILED: "failed",
  LANES_FAILED: "failed",
  ARENA_UNAVAILABLE: "hostCannot",
  SSD_UNAVAILABLE: "hostCannot",
  SSD_FOREIGN: "failed",
  SSD_IN_USE: "failed",
  INDEX_IN_USE: "failed",
  INDEX_FOREIGN: "failed",
  INDEX_FAILED: "failed",
  SOCKET_IN_USE: "failed",
  ENGINE_PROTOCOL: "failed",
  ENGINE_REFUSED: "failed",
  ENGINE_CLOSED: "failed",
  DEADLINE: "failed",
  ABORTED: "interrupted",
  ZMTP_UNAVAILABLE: "failed",
  ROUTER_FULL: "failed",
  TRACE_INVALID: "failed",
  LIMIT: "failed",
  UNSUPPORTED: "hostCannot",
  INTERNAL: "failed",
} as const satisfies Record<ErrorCode, ExitName>;

export function exitOf(thrown: unknown): ExitName {
  return thrown instanceof HearthError ? EXIT_OF_ERROR[thrown.code] : "failed";
}
