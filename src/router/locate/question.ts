import { isWorkerId, type Json, parseJson, type WorkerId } from "../../core/index.ts";

/** What a host asks: who has these blocks of one namespace? */
export interface LocateQuestion {
  readonly cluster: string;
  readonly asker: WorkerId;
  /** In hex. */
  readonly namespace: string;
  /** The first eight bytes of each `BlockKey`, little-endian. */
  readonly hashes: BigUint64Array;
}

/** Keys in one question. */
export const LOCATE_KEYS_MAX = 1_024;
const QUESTION_BYTES_MAX = 128 * 1024;
const DEPTH_MAX = 4;
const KEY = /^[0-9a-f]{64}$/;

/** Reads what anybody may have sent; null where it is no question of this version. */
export function readQuestion(data: Uint8Array): LocateQuestion | null {
  if (data.length > QUESTION_BYTES_MAX) return null;
  const fields = objectIn(data);
  if (fields === null || fields.version !== 1) return null;
  const { cluster, worker_id: asker, namespace, keys } = fields;
  const isSound =
    typeof cluster === "string" &&
    typeof asker === "string" &&
    isWorkerId(asker) &&
    typeof namespace === "string" &&
    KEY.test(namespace) &&
    Array.isArray(keys) &&
    keys.length <= LOCATE_KEYS_MAX;
  if (!isSound) return null;
  const hashes = new BigUint64Array(keys.length);
  const bytes = new Uint8Array(hashes.buffer);
  for (const [at, key] of keys.entries()) {
    if (typeof key !== "string" || !KEY.test(key)) return null;
    bytes.subarray(at * 8, at * 8 + 8).setFromHex(key.slice(0, 16));
  }
  return { cluster, asker, namespace, hashes };
}

function objectIn(data: Uint8Array): { readonly [name: string]: Json | undefined } | null {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    const json = parseJson(text, DEPTH_MAX);
    return typeof json === "object" && json !== null && !Array.isArray(json) ? json : null;
  } catch {
    return null;
  }
}
