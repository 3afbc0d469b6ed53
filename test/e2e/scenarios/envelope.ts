import { systemClock } from "../../../src/core/index.ts";
import { EXAMPLES, OTHERS } from "../examples.ts";
import { outcomesOf, type Stage } from "../stage.ts";
import { all, namesOf, PROMPT, UNPINNED } from "./blocks.ts";
import type { Scenario } from "./scenario.ts";

const beside = (command: string, members: object) =>
  command.replace(/}$/, `, ${JSON.stringify(members).slice(1)}`);

/** What may stand beside a command: repetitions, order, who is in charge, and until when. */
async function envelope(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  const { worker } = host;
  await host.store(...PROMPT);
  const word = async (command: string) => {
    const { status, reason = "", duplicate } = await stage.send(worker, command);
    return duplicate === true ? "duplicate" : reason.slice(0, reason.indexOf(":")) || status;
  };
  const pin = (members: object) =>
    word(beside(EXAMPLES.cache, { issuer: "router-1", owner: "tools", ...members }));
  claims.equal("the first", await pin({ id: "a", epoch: 3, seq: 10 }), "ok");
  claims.equal("the same again", await pin({ id: "a", epoch: 3, seq: 10 }), "duplicate");
  claims.equal("one that came late", await pin({ id: "b", epoch: 3, seq: 9 }), "stale");
  claims.equal("of a router that was replaced", await pin({ id: "c", epoch: 2 }), "fenced");
  const nowS = Math.floor(systemClock.wallMs() / 1_000);
  claims.equal("too late", await pin({ id: "d", not_after: nowS - 60 }), "expired");
  claims.equal("in time", await pin({ id: "e", not_after: nowS + 60 }), "ok");
  const held = (await host.pins()).map(({ owner, blocks }) => [owner, blocks]);
  claims.equal("two of them pinned", held, [
    ["tools", 3],
    ["tools", 3],
  ]);
  await stage.restart(host, "SIGKILL");
  claims.equal("known after a crash", await pin({ id: "a", epoch: 3, seq: 10 }), "duplicate");
  claims.equal("the order too", await pin({ id: "f", epoch: 3, seq: 9 }), "stale");
  claims.equal("nobody else's pins go", await word(OTHERS.unpin), "ok");
  claims.equal("as before", (await host.pins()).length, 2);
}

async function flush(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.storeDurably(...PROMPT, ...UNPINNED);
  await stage.send(host.worker, EXAMPLES.cache);
  const receipt = await stage.send(host.worker, OTHERS.flush);
  const { done, held } = receipt.counts;
  claims.equal("what nothing holds goes", [receipt.status, done, held], ["partial", 2, 3]);
  claims.equal("it names no blocks", outcomesOf(receipt), []);
  claims.equal("the pinned stay", await host.read(namesOf(PROMPT)), all("ok", PROMPT));
  claims.equal("others do not", await host.read(namesOf(UNPINNED)), all("miss", UNPINNED));
}

export const ENVELOPE: readonly Scenario[] = [
  { name: "envelope", kind: "example", run: envelope },
  { name: "Flush", kind: "example", run: flush },
];
