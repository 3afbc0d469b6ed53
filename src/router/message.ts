import { type Json, parseJson } from "../core/index.ts";

const DEPTH_MAX = 8;

/** Members of a JSON object from an untrusted sender. */
export type MessageFields = Readonly<Record<string, Json | undefined>>;

/** Parses a message. Returns null if it is longer than `bytesMax` bytes or not a JSON object. */
export function readFields(data: Uint8Array, bytesMax: number): MessageFields | null {
  if (data.length > bytesMax) return null;
  try {
    const json = parseJson(new TextDecoder("utf-8", { fatal: true }).decode(data), DEPTH_MAX);
    return typeof json === "object" && json !== null && !Array.isArray(json) ? json : null;
  } catch {
    return null;
  }
}
