import type { ControlClient, FoundWorker } from "../../control/client/index.ts";
import { HearthError } from "../../core/index.ts";
import type { Io } from "../io.ts";
import { plain } from "./plain.ts";

/** Who answers discovery within `ms`; null where nobody could be asked, which has been said. */
export async function discover(
  client: ControlClient,
  { name, io }: { readonly name: string; readonly io: Io },
  ms: number,
  signal: AbortSignal,
): Promise<readonly FoundWorker[] | null> {
  try {
    return await client.workers(ms, signal);
  } catch (thrown) {
    if (!(thrown instanceof HearthError) || thrown.code !== "DEADLINE") throw thrown;
    io.err.write(`hearth ${name}: ${plain(thrown.message, Infinity)}\n`);
    return null;
  }
}
