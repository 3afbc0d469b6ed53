import { createHandleBatch } from "../../../src/store/index.ts";
import { batchOf } from "../../store/names.ts";
import { EXAMPLES, OTHERS } from "../examples.ts";
import { outcomesOf, type Stage } from "../stage.ts";
import { all, DOC, FOLLOWING, namesOf, PREFIX, SESSION, tiersOf } from "./blocks.ts";
import type { Scenario } from "./scenario.ts";

/** A worker that starts: nothing in RAM. It is warmed before any request is sent to it. */
async function coldNode(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.storeDurably(...DOC);
  await host.nameByPageKey(...namesOf(DOC));
  await stage.restart(host, "SIGTERM");
  const { ram } = await host.get<{ ram: { blocks: number } }>("/v1/status");
  claims.equal("it is cold", ram.blocks, 0);
  const receipt = await stage.send(host.worker, EXAMPLES.warm);
  claims.equal("it knows the keys of before", outcomesOf(receipt), ["done", "done"]);
  claims.equal("the first request is served from RAM", await host.read(namesOf(DOC), "ram"), [
    ...all("ok", DOC),
  ]);
}

/** A user goes away for an hour and comes back. */
async function suspension(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  const { client } = host.engine;
  await host.store(...SESSION);
  const last = batchOf([SESSION.at(-1)!.name]);
  await client.sessionCommit(7n, last, createHandleBatch(1));
  const list = async () => (await host.get<{ sessions: unknown[] }>("/v1/sessions")).sessions;
  claims.equal("a session keeps them in RAM", (await list()).length, 1);
  const receipt = await stage.send(host.worker, EXAMPLES.pause);
  claims.equal("it is put to sleep", outcomesOf(receipt), ["done", "done"]);
  claims.equal("all of it is on SSD", await tiersOf(host, SESSION), ["ssd", "ssd"]);
  claims.equal("and the session is over", await list(), []);
  await host.flood(3);
  await stage.restart(host, "SIGKILL");
  claims.equal("the lease is there after a crash", (await host.leases()).length, 1);
  claims.equal("the user comes back", await host.read(namesOf(SESSION)), all("ok", SESSION));
  const revoked = await stage.send(host.worker, OTHERS.revoke);
  claims.equal("and leaves for good", revoked.status, "ok");
  claims.equal("nothing is left", await tiersOf(host, SESSION), ["", ""]);
}

/** An agent goes back to a place in its context and goes on another way. */
async function rewrite(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  const branch = [{ name: "chat/a/new" }, { name: "chat/a/new/turn" }];
  await host.storeDurably(...PREFIX, ...FOLLOWING);
  await stage.send(host.worker, EXAMPLES.prune);
  await host.store(...branch);
  claims.equal("the new way is there", await host.read(namesOf([...PREFIX, ...branch])), [
    ...all("ok", [...PREFIX, ...branch]),
  ]);
  claims.equal("the old one is not", await host.read(namesOf(FOLLOWING)), all("miss", FOLLOWING));
  const pin = '{"type": "Cache", "block_hashes": [4242], "pin": true, "owner": "tools"}';
  await host.store({ name: "chat/a/kept", hash: 4242n });
  await stage.send(host.worker, pin);
  const receipt = await stage.send(host.worker, EXAMPLES.prune);
  claims.equal("what others hold stays", [receipt.status, receipt.counts.held], ["partial", 1]);
  claims.equal("and who", receipt.held?.[0]?.by, [{ kind: "pin", owner: "tools" }]);
  claims.equal("the rest went", await host.read(namesOf(branch)), all("miss", branch));
  claims.equal("it is read", await host.read(["chat/a/kept"]), ["ok"]);
}

export const FLOWS: readonly Scenario[] = [
  { name: "Cold node warming", kind: "end to end", run: coldNode },
  { name: "Session suspension", kind: "end to end", run: suspension },
  { name: "Context rewrite", kind: "end to end", run: rewrite },
];
