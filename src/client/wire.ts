import {
  encodeBody,
  JSON_TYPE,
  type MediaType,
  MSGPACK_TYPE,
  type Receipt,
} from "../control/index.ts";
import type { WireCommand } from "./control-client.ts";

export const ENCODINGS = ["json", "msgpack"] as const;
/** How commands travel; workers answer the same way. */
export type Encoding = (typeof ENCODINGS)[number];

export interface Wire {
  readonly contentType: MediaType;
  /** A copy of its own. */
  encode(command: WireCommand): Uint8Array;
}

export function wireOf(encoding: Encoding): Wire {
  const contentType = encoding === "json" ? JSON_TYPE : MSGPACK_TYPE;
  return {
    contentType,
    // Encoders hand out views of a buffer that they go on using.
    encode: (command) => Uint8Array.from(encodeBody(command, contentType)),
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
