import { connectControl, pin } from "../../../src/control/client/index.ts";
import {
  decodeReceipt,
  encodeBody,
  MSGPACK_TYPE,
  type Receipt,
} from "../../../src/control/index.ts";
import { waitFor } from "../../support/wait.ts";
import { EXAMPLES, OTHERS } from "../examples.ts";
import { outcomesOf, type Stage } from "../stage.ts";
import { all, namesOf, PROMPT, SESSION, UNPINNED } from "./blocks.ts";
import type { Scenario } from "./scenario.ts";

const ALL_ONES = 2n ** 64n - 1n;

async function messagePack(stage: Stage): Promise<void> {
  const { claims, nats } = stage;
  const host = await stage.host();
  await host.store(...PROMPT, { name: "ones", hash: ALL_ONES }, ...UNPINNED);
  const command = { type: "Cache", block_hashes: [111, 222, 333, ALL_ONES], pin: true };
  const headers = { "Content-Type": MSGPACK_TYPE };
  const body = Uint8Array.from(encodeBody(command, MSGPACK_TYPE));
  const [answer] = await nats.request(`kv-control-${host.worker}`, body, { headers });
  claims.equal("the answer is MessagePack", answer?.headers["Content-Type"], MSGPACK_TYPE);
  const receipt = answer && decodeReceipt(answer.data, MSGPACK_TYPE);
  if (!receipt) throw new Error("no receipt");
  claims.equal("each block is pinned", receipt.counts.done, 4);
  const given = BigInt.asUintN(64, BigInt(receipt.blocks[3]!.block));
  claims.equal("64 bits come back as they went", given, ALL_ONES);
  const signed = await stage.send(host.worker, EXAMPLES.cache.replace("111, 222, 333", "-1"));
  claims.equal("also signed, as routers have them", outcomesOf(signed), ["done"]);
  await host.flood(3);
  const kept = [...namesOf(PROMPT), "ones"];
  claims.equal("and they stay", await host.read(kept), ["ok", "ok", "ok", "ok"]);
  claims.equal("others do not", await host.read(namesOf(UNPINNED)), all("miss", UNPINNED));
}

async function broadcast(stage: Stage): Promise<void> {
  const { claims } = stage;
  const hosts = [await stage.host(), await stage.host()];
  for (const host of hosts) await host.store(...PROMPT, ...UNPINNED);
  const receipts = await stage.broadcast(EXAMPLES.cache, hosts.length);
  claims.equal("both answer", receipts.map(({ worker_id }) => worker_id).sort(), [
    ...hosts.map(({ worker }) => worker),
  ]);
  for (const receipt of receipts) {
    const who = receipt.worker_id;
    claims.equal(`${who} pinned each block`, outcomesOf(receipt), ["done", "done", "done"]);
  }
  for (const host of hosts) {
    const { worker } = host;
    await host.flood(3);
    claims.equal(`on ${worker} they stay`, await host.read(namesOf(PROMPT)), all("ok", PROMPT));
    const others = await host.read(namesOf(UNPINNED));
    claims.equal(`on ${worker} others go`, others, all("miss", UNPINNED));
  }
  const refused = await stage.broadcast(EXAMPLES.pause, hosts.length);
  const words = refused.map(({ reason = "" }) => reason.slice(0, reason.indexOf(":")));
  claims.equal("what may not come to all is refused", words, [
    ...["broadcast_refused", "broadcast_refused"],
  ]);
}

async function receipts(stage: Stage): Promise<void> {
  const { claims, nats } = stage;
  const host = await stage.host();
  const { worker } = host;
  const heard = await stage.listen<Receipt>(`kv-control-receipts-${worker}`);
  const events = await stage.listen<{ worker_id: string; kind: string; type: string }>(
    `kv-control-events-${worker}`,
  );
  await host.store(...PROMPT, ...SESSION);
  // As routers do it: nobody waits for an answer.
  nats.publish(`kv-control-${worker}`, Buffer.from(EXAMPLES.cache));
  nats.publish(`kv-control-${worker}`, Buffer.from(OTHERS.unpin.replace("333", "999")));
  await waitFor(() => heard.length === 2, 15_000, "two receipts for all to see");
  // One waits for the disk longer than the other: effects are in order, receipts need not be.
  const [second, first] = [...heard].sort((a, b) => b.counts.missing - a.counts.missing);
  claims.equal("each block is listed", outcomesOf(first!), ["done", "done", "done"]);
  claims.equal("also what is not here", outcomesOf(second!), ["done", "done", "missing"]);
  claims.equal("and so the whole", second!.status, "partial");
  await waitFor(() => events.length >= 2, 15_000, "two events");
  const { worker_id, kind, type } = events[0]!;
  claims.equal("events tell of it", [worker_id, kind, type], [...[worker, "command", "Cache"]]);
  for (const poison of ["{", "[]", '{"type": "Burn"}', '{"type": "Cache"}', `"${"x".repeat(9)}`]) {
    const receipt = await stage.send(worker, poison);
    claims.equal(`${poison} is refused`, receipt.status, "rejected");
  }
  const read = await host.read(namesOf(PROMPT));
  claims.equal("and nothing came of it", read, all("ok", PROMPT));
}

interface Found {
  readonly type: string;
  readonly name: string;
  readonly id: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly endpoints?: readonly {
    readonly subject: string;
    readonly queue_group: string;
    readonly num_requests: number;
  }[];
}

async function discovery(stage: Stage): Promise<void> {
  const { claims, nats } = stage;
  const hosts = [await stage.host(), await stage.host()];
  const ask = async (subject: string, wanted: number): Promise<Found[]> => {
    const answers = await nats.request(subject, new Uint8Array(), { wanted, ms: 5_000 });
    return answers.map(({ data }) => JSON.parse(Buffer.from(data).toString()));
  };
  const pings = await ask("$SRV.PING", 2);
  const workers = pings.map(({ metadata }) => metadata.worker_id).sort();
  claims.equal("every agent answers", workers, ["gpu-01", "gpu-02"]);
  const carrier = stage.natsUrl.startsWith("ws") ? "websocket" : "nats";
  claims.equal("connected as they were told", await stage.connections(), [carrier, carrier]);
  const infos = await ask("$SRV.INFO.hearth-agent", 2);
  const info = infos.find(({ metadata }) => metadata.worker_id === "gpu-01");
  claims.equal(
    "it says where it listens",
    info?.endpoints?.map(({ subject }) => subject),
    [...["kv-control-gpu-01", "kv-control-broadcast"]],
  );
  const groups = info?.endpoints?.map(({ queue_group }) => queue_group);
  claims.equal("and that no two share a message", groups, ["", ""]);
  await stage.send(hosts[0]!.worker, EXAMPLES.cache);
  const stats = await ask(`$SRV.STATS.hearth-agent.${info?.id}`, 1);
  claims.equal("it counts", stats[0]?.endpoints?.[0]?.num_requests, 1);
  const types = [pings, infos, stats].map((found) => found[0]?.type);
  claims.equal("as the protocol has it", types, [
    ...["ping", "info", "stats"].map((verb) => `io.nats.micro.v1.${verb}_response`),
  ]);
}

async function client(stage: Stage): Promise<void> {
  const { claims, natsUrl } = stage;
  const host = await stage.host();
  await host.store(...PROMPT);
  await using control = connectControl({ nats: { url: natsUrl }, issuer: "router-1" });
  const found = await control.workers(2_000);
  claims.equal(
    "it finds the worker",
    found.map(({ id }) => id),
    [host.worker],
  );
  const result = await control.send(host.worker, pin([111, 222, 333], { owner: "prompts" }));
  if (result.kind !== "receipt") throw new Error(result.why);
  claims.equal("its command is carried out", outcomesOf(result.receipt), ["done", "done", "done"]);
  const pins = (await host.pins()).map(({ owner, blocks }) => [owner, blocks]);
  claims.equal("for its owner", pins, [["prompts", 3]]);
  const nobody = await control.send("gpu-99", pin([111]), { absentMs: 1_000 });
  claims.equal("who is not there does not answer", nobody.kind, "unreachable");
}

export const TRANSPORT: readonly Scenario[] = [
  { name: "MessagePack", kind: "transport", run: messagePack },
  { name: "broadcast", kind: "transport", run: broadcast },
  { name: "receipts and events for all", kind: "transport", run: receipts },
  { name: "discovery", kind: "transport", run: discovery },
  { name: "the typed client", kind: "transport", run: client },
];
