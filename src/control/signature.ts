import type { NkeyUser } from "../core/index.ts";
import { type MediaType, mediaTypeOf } from "./media-type.ts";

const FORMAT = "hearth-command-v1";
/** Stands for the worker in commands to all of them. */
export const ALL_WORKERS = "*";
/** A signed command is good for at most this long; clocks may differ by the second. */
export const SIGNED_SECONDS_MAX = 600;
export const CLOCK_SKEW_SECONDS = 60;

const encoder = new TextEncoder();

/**
 * The bytes that a command's signature covers: a line that names the format, the id of the worker
 * that is to carry it out (or `*`), the media type of the body, and the body as it travels. The
 * envelope is part of the body.
 */
export function signedBytes(worker: string, type: MediaType, body: Uint8Array): Uint8Array {
  const head = encoder.encode(`${FORMAT}\n${worker}\n${type}\n`);
  const bytes = new Uint8Array(head.length + body.length);
  bytes.set(head);
  bytes.set(body, head.length);
  return bytes;
}

/** Value of the header `Hearth-Signature`: base64url without padding. */
export function signCommand(
  key: NkeyUser,
  worker: string,
  contentType: string,
  body: Uint8Array,
): string {
  return key.sign(signedBytes(worker, mediaTypeOf(contentType), body));
}
