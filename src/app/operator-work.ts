import type { ApiServices, PurgeOutcome } from "../api/index.ts";
import type { ControlPlane, Operation, Sender } from "../control/index.ts";
import { type Clock, HearthError, LAYER_ALL, messageOf } from "../core/index.ts";
import type { PersistReport, PurgeAddress } from "../store/index.ts";
import type { Agent } from "./agent.ts";

type Work = Pick<ApiServices, "purge" | "persist">;
/** Of a line in the audit log. */
const NAMES_MAX = 8;

type Came = Pick<Operation, "status" | "counts">;

/** What operators do with blocks beside commands; each with a line in the audit log. */
export function operatorWork(
  agent: Pick<Agent, "purge" | "persist">,
  plane: Pick<ControlPlane, "note">,
  clock: Clock,
): Work {
  async function noted<T>(
    about: Pick<Operation, "type" | "blocks" | "names">,
    sender: Sender,
    work: () => Promise<T>,
    cameOf: (result: T) => Came,
  ): Promise<T> {
    const startedMs = clock.monotonicMs();
    const note = (came: Came, reason: string | null) => {
      const elapsedMs = Math.round((clock.monotonicMs() - startedMs) * 1_000) / 1_000;
      plane.note({ ...about, ...came, reason, elapsedMs }, sender);
    };
    try {
      const result = await work();
      note(cameOf(result), null);
      return result;
    } catch (thrown) {
      note({ status: "rejected", counts: {} }, reasonOf(thrown));
      throw thrown;
    }
  }

  return {
    purge(blocks, sender) {
      const addresses = blocks.map(({ digest, layer = LAYER_ALL }) => ({
        digest: Uint8Array.fromHex(digest),
        layer,
      }));
      const names = addresses.slice(0, NAMES_MAX).map(nameOf);
      const about = { type: "Purge", blocks: blocks.length, names };
      return noted(about, sender, () => agent.purge(addresses, sender.name), ofPurge);
    },
    persist(sender) {
      const about = { type: "Persist", blocks: null, names: [] };
      return noted(about, sender, () => agent.persist(), ofPersist);
    },
  };
}

/** As commands name a block. */
function nameOf({ digest, layer }: PurgeAddress): string {
  return layer === LAYER_ALL ? digest.toHex() : `${digest.toHex()}/${layer}`;
}

function reasonOf(thrown: unknown): string {
  const code = thrown instanceof HearthError ? thrown.code : "INTERNAL";
  return `${code.toLowerCase()}: ${messageOf(thrown)}`;
}

function ofPurge(outcomes: readonly PurgeOutcome[]): Came {
  const counts = { done: 0, missing: 0, held: 0, failed: 0 };
  for (const outcome of outcomes) counts[outcome]++;
  return { status: counts.held + counts.failed === 0 ? "ok" : "partial", counts };
}

function ofPersist({ written, skipped, durable }: PersistReport): Came {
  return { status: durable && skipped === 0 ? "ok" : "partial", counts: { written, skipped } };
}
