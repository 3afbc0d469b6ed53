import { systemClock } from "../../../src/core/index.ts";
import { digestOf } from "../../store/names.ts";
import { waitFor } from "../../support/wait.ts";
import { EXAMPLES, OTHERS } from "../examples.ts";
import { outcomesOf, type Stage } from "../stage.ts";
import {
  ANSWER,
  all,
  DOC,
  FOLLOWING,
  namesOf,
  PREFIX,
  PROMPT,
  SESSION,
  THOUGHTS,
  tiersOf,
  UNPINNED,
} from "./blocks.ts";
import type { Scenario } from "./scenario.ts";

const FLOOD = 3;

async function cache(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.store(...PROMPT, ...UNPINNED);
  const receipt = await stage.send(host.worker, EXAMPLES.cache);
  claims.equal("each block is pinned", outcomesOf(receipt), ["done", "done", "done"]);
  claims.equal(
    "the receipt lists what it was given",
    receipt.blocks.map(({ block }) => block),
    [...[111, 222, 333]],
  );
  claims.equal("and that will last", receipt.durable, true);
  await host.flood(FLOOD);
  claims.equal("pinned blocks are read, byte for byte", await host.read(namesOf(PROMPT)), [
    ...all("ok", PROMPT),
  ]);
  claims.equal("those beside them are gone", await host.read(namesOf(UNPINNED)), [
    ...all("miss", UNPINNED),
  ]);
  const let_go = await stage.send(host.worker, OTHERS.unpin);
  claims.equal("unpinned", outcomesOf(let_go), ["done", "done", "done"]);
  await host.flood(FLOOD);
  claims.equal("then they go like others", await host.read(namesOf(PROMPT)), all("miss", PROMPT));
}

async function retain(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.storeDurably(...PROMPT, ...UNPINNED);
  const receipt = await stage.send(host.worker, OTHERS.retain);
  claims.equal("each block is preferred", outcomesOf(receipt), ["done", "done", "done"]);
  await host.flood(FLOOD);
  claims.equal("preferred blocks stay", await host.read(namesOf(PROMPT)), all("ok", PROMPT));
  claims.equal("others go", await host.read(namesOf(UNPINNED)), all("miss", UNPINNED));
}

async function prune(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.storeDurably(...PREFIX, ...FOLLOWING);
  const receipt = await stage.send(host.worker, EXAMPLES.prune);
  claims.equal("all that follows went", receipt.counts.done, FOLLOWING.length);
  claims.equal("the block that was named", outcomesOf(receipt), ["done"]);
  claims.equal("what follows is a miss", await host.read(namesOf(FOLLOWING)), [
    ...all("miss", FOLLOWING),
  ]);
  claims.equal("on SSD too", await tiersOf(host, FOLLOWING), ["", "", ""]);
  claims.equal("what is before stays", await host.read(namesOf(PREFIX)), all("ok", PREFIX));
  await stage.restart(host, "SIGKILL");
  claims.equal("none comes back", await host.read(namesOf(FOLLOWING)), all("miss", FOLLOWING));
  claims.equal("and the prefix does", await host.read(namesOf(PREFIX)), all("ok", PREFIX));
}

async function think(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.storeDurably(ANSWER, ...THOUGHTS);
  claims.equal("before: on both", await tiersOf(host, THOUGHTS), ["ram+ssd", "ram+ssd"]);
  const receipt = await stage.send(host.worker, EXAMPLES.think);
  claims.equal("each block is marked", outcomesOf(receipt), ["done", "done"]);
  claims.equal("the copies on SSD are gone", await tiersOf(host, THOUGHTS), ["ram", "ram"]);
  await host.persist();
  claims.equal("and none is written", await tiersOf(host, THOUGHTS), ["ram", "ram"]);
  claims.equal("in RAM they are read", await host.read(namesOf(THOUGHTS)), all("ok", THOUGHTS));
  await stage.restart(host, "SIGTERM");
  claims.equal("after a restart they are gone", await host.read(namesOf(THOUGHTS)), [
    ...all("miss", THOUGHTS),
  ]);
  claims.equal("the answer is not", await host.read([ANSWER.name]), ["ok"]);
}

async function purge(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.store(ANSWER, ...THOUGHTS);
  const early = await stage.send(host.worker, OTHERS.purge);
  claims.equal("what is not transient is not purged", outcomesOf(early), [
    ...["rejected not_transient", "rejected not_transient"],
  ]);
  claims.equal("and is there", await host.read(namesOf(THOUGHTS)), all("ok", THOUGHTS));
  await stage.send(host.worker, EXAMPLES.think);
  const receipt = await stage.send(host.worker, OTHERS.purge);
  claims.equal("what is transient goes", outcomesOf(receipt), ["done", "done"]);
  claims.equal("and is a miss", await host.read(namesOf(THOUGHTS)), all("miss", THOUGHTS));
  claims.equal("the answer stays", await host.read([ANSWER.name]), ["ok"]);
}

async function pause(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.store(...SESSION, ...UNPINNED);
  const receipt = await stage.send(host.worker, EXAMPLES.pause);
  claims.equal("each block is paused", outcomesOf(receipt), ["done", "done"]);
  claims.equal("for so long", receipt.ttl_seconds, 3600);
  claims.equal("their RAM is given up", await tiersOf(host, SESSION), ["ssd", "ssd"]);
  const [lease] = await host.leases();
  claims.equal("the lease is listed", [lease?.name, lease?.blocks], ["session-abc", 2]);
  const left = lease?.remaining_seconds ?? 0;
  claims.that("and ends in an hour", left > 3_500 && left <= 3_600, left);
  claims.equal("they are read again", await host.read(namesOf(SESSION)), all("ok", SESSION));
  await host.flood(FLOOD);
  claims.equal("after a flood too", await host.read(namesOf(SESSION)), all("ok", SESSION));
  claims.equal("others are gone", await host.read(namesOf(UNPINNED)), all("miss", UNPINNED));
}

async function leases(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.store(...SESSION);
  const paused = await stage.send(host.worker, OTHERS.pauseForever);
  claims.equal("no time: the longest there is", paused.ttl_seconds, 86_400);
  await stage.send(host.worker, EXAMPLES.pause);
  const receipt = await stage.send(host.worker, OTHERS.renew);
  claims.equal("renewed", [receipt.status, receipt.ttl_seconds], ["ok", 7200]);
  const left = (await host.leases())[0]?.remaining_seconds ?? 0;
  claims.that("it lasts longer", left > 7_100 && left <= 7_200, left);
  const revoked = await stage.send(host.worker, OTHERS.revoke);
  claims.equal("revoked", [revoked.status, revoked.counts.done], ["ok", 2]);
  const listed = revoked.blocks.map(({ block, outcome }) => `${block} ${outcome}`);
  const digests = namesOf(SESSION).map((name) => `${digestOf(name).toHex()} done`);
  claims.equal("each by its digest", listed, digests);
  claims.equal("its blocks are gone", await host.read(namesOf(SESSION)), all("miss", SESSION));
  claims.equal("on SSD too", await tiersOf(host, SESSION), ["", ""]);
  claims.equal("and the lease", await host.leases(), []);
  const again = await stage.send(host.worker, OTHERS.revoke);
  claims.equal("once more: there is none", again.counts.missing, 1);
}

async function expiry(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  type Told = { kind: string; name?: string; purged?: number };
  const events = await stage.listen<Told>(`kv-control-events-${host.worker}`);
  await host.store(...SESSION, ...UNPINNED);
  const fromMs = systemClock.monotonicMs();
  await stage.send(host.worker, OTHERS.pauseShortly);
  const sentMs = systemClock.monotonicMs();
  await waitFor(async () => (await host.leases()).length === 0, 10_000, "the end of the lease");
  const endedMs = systemClock.monotonicMs();
  claims.that("not before 2 s", endedMs - fromMs >= 1_950, endedMs - fromMs);
  claims.that("nor a second after", endedMs - sentMs <= 3_000, endedMs - sentMs);
  const isGone = async () => (await tiersOf(host, SESSION)).every((tiers) => tiers === "");
  await waitFor(isGone, 5_000, "the end of its blocks");
  claims.equal("its blocks are gone", await host.read(namesOf(SESSION)), all("miss", SESSION));
  claims.equal("others are not", await host.read(namesOf(UNPINNED)), all("ok", UNPINNED));
  const find = () => events.find(({ kind }) => kind === "hold_expired");
  const told = await waitFor(find, 5_000, "the event");
  claims.equal("an event tells it", [told.name, told.purged], ["session-abc", 2]);
}

async function warm(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.storeDurably(...DOC);
  await host.nameByPageKey(...namesOf(DOC));
  await host.crowdOutOfRam(...namesOf(DOC));
  const [cold] = await host.read([DOC[0]!.name], "ram");
  claims.equal("before: not in RAM", cold, "miss");
  const receipt = await stage.send(host.worker, EXAMPLES.warm);
  claims.equal("each block came", outcomesOf(receipt), ["done", "done"]);
  claims.equal("RAM has them", await tiersOf(host, DOC), ["ram+ssd", "ram+ssd"]);
  claims.equal("and serves them", await host.read(namesOf(DOC), "ram"), all("ok", DOC));
  const again = await stage.send(host.worker, EXAMPLES.warm);
  claims.equal("twice changes nothing", outcomesOf(again), ["already", "already"]);
  const gpu = await stage.send(host.worker, OTHERS.warmGpu);
  claims.equal("no engine takes them to its GPU", outcomesOf(gpu), [
    ...["deferred gpu_sink", "deferred gpu_sink"],
  ]);
}

export const COMMANDS: readonly Scenario[] = [
  { name: "Warm flow", kind: "integration", run: warm },
  { name: "Prune flow", kind: "integration", run: prune },
  { name: "Pin flow", kind: "integration", run: cache },
  { name: "Pause flow", kind: "integration", run: pause },
  { name: "Think: marked", kind: "example", run: think },
  { name: "Think: purged", kind: "example", run: purge },
  { name: "RenewLease, RevokeLease", kind: "example", run: leases },
  { name: "a lease ends by itself", kind: "example", run: expiry },
  { name: "retain", kind: "example", run: retain },
];
