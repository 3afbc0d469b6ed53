import type { NkeyUser } from "../../core/index.ts";
import {
  encodeBody,
  JSON_TYPE,
  type MediaType,
  MSGPACK_TYPE,
  type Receipt,
  SIGNATURE_HEADER,
  signCommand,
} from "../index.ts";
import type { WireCommand } from "./control-client.ts";

export const ENCODINGS = ["json", "msgpack"] as const;
/** How commands travel; workers answer the same way. */
export type Encoding = (typeof ENCODINGS)[number];

export interface Wire {
  readonly contentType: MediaType;
  /** A copy of its own. */
  encode(command: WireCommand): Uint8Array;
  /** Headers of a command for `worker`, or for all (`*`): its type, and its signature. */
  headers(worker: string, body: Uint8Array): Record<string, string>;
  /** Whether commands are signed: they need `not_after` then. */
  readonly isSigned: boolean;
}

/** `key`: signs every command; null: none is signed. */
export function wireOf(encoding: Encoding, key: NkeyUser | null = null): Wire {
  const contentType = encoding === "json" ? JSON_TYPE : MSGPACK_TYPE;
  const plain = { "Content-Type": contentType };
  return {
    contentType,
    isSigned: key !== null,
    // Encoders hand out views of a buffer that they go on using.
    encode: (command) => Uint8Array.from(encodeBody(command, contentType)),
    headers(worker, body) {
      if (key === null) return { ...plain };
      return { ...plain, [SIGNATURE_HEADER]: signCommand(key, worker, contentType, body) };
    },
  };
}

/**
 * Whether a refusal says nothing of tries before it: the worker has not looked whether it knows the
 * command.
 */
export function isUnread({ status, reason = "" }: Receipt): boolean {
  return status === "rejected" && /^(?:busy|rate_limited)\b/.test(reason);
}

/** Whether the worker does not take such a command from a broadcast. */
export function isNoBroadcast({ status, reason = "" }: Receipt): boolean {
  return status === "rejected" && /^broadcast_refused\b/.test(reason);
}
