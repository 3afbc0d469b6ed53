import { HearthError } from "../../core/index.ts";
import { IndexLine } from "./index-line.ts";
import type { Answer, OpenLedgerOrder, OpenOrder } from "./protocol.ts";

/**
 * Starts a worker and has it open what the order says. `failed`: the disk does not even allow that.
 * Throws HearthError where the worker refuses, ABORTED once the signal fires.
 */
export async function openLine<Kind extends "opened" | "ledgerOpened">(
  order: OpenOrder | OpenLedgerOrder,
  kind: Kind,
  signal: AbortSignal | undefined,
): Promise<{ line: IndexLine; answer: Extract<Answer, { kind: Kind | "failed" }> }> {
  const line = new IndexLine();
  const onAbort = () => line.end();
  signal?.addEventListener("abort", onAbort, { once: true });
  try {
    const answer = await line.ask(order);
    if (signal?.aborted) throw new HearthError("ABORTED", "opening the index was given up");
    if (answer.kind === "refused") {
      throw new HearthError(answer.code, answer.message, { fix: answer.fix });
    }
    if (answer.kind !== kind && answer.kind !== "failed") {
      throw new HearthError("INTERNAL", `the index's worker answered ${answer.kind}`);
    }
    return { line, answer: answer as Extract<Answer, { kind: Kind | "failed" }> };
  } catch (thrown) {
    line.end();
    throw thrown;
  } finally {
    signal?.removeEventListener("abort", onAbort);
  }
}
