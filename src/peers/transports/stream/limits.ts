import { LINE_LIMITS, type LineLimits } from "../line/index.ts";

/** What bounds a stream transport. */
export interface StreamLimits extends LineLimits {
  /** Places announced to one peer ahead of their headers. */
  readonly announcedMax: number;
}

export const STREAM_LIMITS: StreamLimits = {
  // The lanes have room for 1,024 in both directions: of ours 192 may be idle, and as many in use.
  ...LINE_LIMITS,
  announcedMax: 64,
};
