import { FrameStatus } from "./layout.ts";

/** Why a frame is refused; goes back to the sender. After a fatal one the line closes. */
export interface Refusal {
  readonly status: Exclude<FrameStatus, typeof FrameStatus.ok>;
  /** One sentence that names what to do about it. */
  readonly text: string;
  readonly fatal: boolean;
}

/** Whether the line closes after a frame of this status. `limit` closes it only when it floods. */
const FATAL: Readonly<Record<Refusal["status"], boolean>> = {
  [FrameStatus.malformed]: true,
  [FrameStatus.unknownOp]: false,
  [FrameStatus.version]: true,
  [FrameStatus.frameTooLarge]: true,
  [FrameStatus.notGreeted]: true,
  [FrameStatus.limit]: false,
  [FrameStatus.internal]: true,
  [FrameStatus.manifestRefused]: true,
  [FrameStatus.overstayed]: true,
  [FrameStatus.draining]: false,
};

export function refusal(status: Refusal["status"], text: string, fatal = FATAL[status]): Refusal {
  return { status, text, fatal };
}

export function malformed(text: string): Refusal {
  return refusal(FrameStatus.malformed, text);
}

/** A value read from a frame, or why the frame is refused. */
export type Decoded<Value> =
  | { readonly ok: true; readonly value: Value }
  | { readonly ok: false; readonly refusal: Refusal };

export function decoded<Value>(value: Value): Decoded<Value> {
  return { ok: true, value };
}

export function refused<Value>(reason: Refusal): Decoded<Value> {
  return { ok: false, refusal: reason };
}
