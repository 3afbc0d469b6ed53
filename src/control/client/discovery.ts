import type { Bus } from "../../bus/index.ts";
import { type Clock, type Json, parseJson } from "../../core/index.ts";
import { SERVICE_NAME } from "../index.ts";
import type { FoundWorker } from "./control-client.ts";
import type { Mailbox } from "./inbox.ts";

/** Asks who is there and takes what is answered until `endMs` on the monotonic clock. */
export async function findWorkers(
  bus: Bus,
  clock: Clock,
  mailbox: Mailbox,
  endMs: number,
  signal: AbortSignal | undefined,
): Promise<FoundWorker[]> {
  const found = new Map<string, FoundWorker>();
  bus.publish(`$SRV.PING.${SERVICE_NAME}`, new Uint8Array(), { reply: mailbox.subject });
  for (;;) {
    const message = await mailbox.next(endMs - clock.monotonicMs(), signal);
    if (message === null || message.headers.Status === "503") break;
    const worker = readPing(message.data);
    if (worker !== null) found.set(worker.id, worker);
  }
  return [...found.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
}

/** An answer of the micro-service protocol; null where it is no agent's. */
function readPing(data: Uint8Array): FoundWorker | null {
  let ping: Json;
  try {
    ping = parseJson(new TextDecoder().decode(data));
  } catch {
    return null;
  }
  if (typeof ping !== "object" || ping === null || Array.isArray(ping)) return null;
  const { name, version, metadata } = ping;
  if (name !== SERVICE_NAME || typeof metadata !== "object" || metadata === null) return null;
  if (Array.isArray(metadata) || typeof metadata.worker_id !== "string") return null;
  return {
    id: metadata.worker_id,
    version: typeof version === "string" ? version : "",
    incarnation: typeof metadata.incarnation === "string" ? metadata.incarnation : null,
  };
}
