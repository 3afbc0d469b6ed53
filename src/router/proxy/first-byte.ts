import type { ProxySettings } from "./settings.ts";

/**
 * How long a worker may take from the last byte of a request to the first of its answer, in
 * milliseconds. One fixed time for all requests: it ends what would hang for ever, and says nothing
 * of the worker's health, since a long prompt behind others may take minutes.
 */
export function firstByteMs({ firstByteMs: fixed }: ProxySettings): number {
  return fixed;
}
