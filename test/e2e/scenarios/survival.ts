import { EXAMPLES } from "../examples.ts";
import type { Stage } from "../stage.ts";
import { all, namesOf, PROMPT, SESSION, tiersOf } from "./blocks.ts";
import type { Scenario } from "./scenario.ts";

/** Pins and leases that were acknowledged, over the end of the process. */
async function survives(stage: Stage, by: "SIGTERM" | "SIGKILL"): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.store(...PROMPT, ...SESSION);
  const [pinned, paused] = await Promise.all([
    stage.send(host.worker, EXAMPLES.cache),
    stage.send(host.worker, EXAMPLES.pause),
  ]);
  claims.equal("both last", [pinned.durable, paused.durable], [true, true]);
  // At once: nothing has time to be written that was not when the receipt came.
  await stage.restart(host, by);
  const [pin] = await host.pins();
  claims.equal("the pin is there", [pin?.owner, pin?.blocks], ["nats", 3]);
  const [lease] = await host.leases();
  claims.equal("the lease is there", [lease?.name, lease?.blocks], ["session-abc", 2]);
  const left = lease?.remaining_seconds ?? 0;
  claims.that("with the time it had left", left > 3_500 && left <= 3_600, left);
  await host.flood(3);
  const kept = [...PROMPT, ...SESSION];
  claims.equal("their blocks outlive a flood", await host.read(namesOf(kept)), all("ok", kept));
  const again = await stage.send(host.worker, EXAMPLES.cache.replace("true", "false"));
  claims.equal("and can be let go", again.counts.done, 3);
  claims.equal("no pin is left", await host.pins(), []);
  claims.that("the lease is", (await tiersOf(host, SESSION)).every(Boolean), null);
}

export const SURVIVAL: readonly Scenario[] = [
  { name: "pins and leases over SIGTERM", kind: "survival", run: (s) => survives(s, "SIGTERM") },
  { name: "pins and leases over SIGKILL", kind: "survival", run: (s) => survives(s, "SIGKILL") },
];
