import { describe, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { connect } from "@nats-io/transport-node";
import { METRICS } from "../../src/api/index.ts";
import { ROUTER_BOOK, SCHEMA_KEYS } from "../../src/config/index.ts";
import { connectControl, flush, pin, think } from "../../src/control/client/index.ts";
import { REFUSALS } from "../../src/control/index.ts";
import { type HearthEvent, publishedEvent } from "../../src/observability/activity/index.ts";
import { HEALTH_CODE_NAMES, HEALTH_CODES } from "../../src/observability/index.ts";
import { describeNats, NatsServer, waitFor, withTempDir } from "../support/index.ts";
import { AgentProcess } from "./agent-process.ts";

const ROOT = join(import.meta.dir, "../..");
const page = readFileSync(join(ROOT, "docs/operating/operations.md"), "utf8");
const TIMEOUT_MS = 30_000;

/** The first cell of each row below the heading, up to the next heading of that level. */
function firstCells(heading: string): string[] {
  const [, section = ""] = page.split(`\n## ${heading}\n`);
  const [own = ""] = section.split("\n## ");
  const rows = own.split("\n").filter((line) => /^\| `/.test(line));
  return rows.map((row) => row.slice(2).split(" | ")[0]!);
}

/** Words in backticks, those of fenced examples left out. */
const quotedIn = (text: string) =>
  [...text.replace(/```[\s\S]*?```/g, "").matchAll(/`([^`]+)`/g)].map((match) => match[1]!);

/** The compiler sees to it that none is missing here. */
const EVENT_KINDS = {
  hold_relieved: true,
  hold_expired: true,
  hold_lost: true,
  peer_down: true,
  peer_up: true,
  peer_transport_down: true,
  peer_transport_up: true,
  peer_slow: true,
  peer_corrupt: true,
  peer_restarted: true,
  peer_came: true,
  peer_went: true,
  command: true,
} as const satisfies Record<HearthEvent["kind"], true>;

/** Those of the control plane, and those of what processes and folders do to the agent. */
const TABLED =
  /^(?:KV_PINS_|KV_HOLDS|NATS_|AUDIT_|ENGINE_HOLDS_ALL|FD_LIMIT|KV_SSD_REPLACED|KV_RAM_H)/;
const CONTROL_CODES = HEALTH_CODE_NAMES.filter((code) => TABLED.test(code));

describe("docs/operating/operations.md", () => {
  test("explains each kind of event", () => {
    expect(firstCells("Events").flatMap(quotedIn).sort()).toEqual(Object.keys(EVENT_KINDS).sort());
  });

  test("shows an event as it is published", () => {
    const [, example = ""] = /## Events\n[\s\S]*?```json\n([\s\S]*?)```/.exec(page)!;
    const { worker_id, incarnation, sequence, time, ...event } = JSON.parse(example);
    const numbered = { sequence, wallMs: Date.parse(time), event: event as HearthEvent };
    const told = { worker_id, incarnation, ...publishedEvent(numbered) };
    expect(JSON.parse(example)).toEqual(told);
    expect(Object.keys(JSON.parse(example))).toEqual(Object.keys(told));
    expect(event.kind in EVENT_KINDS).toBe(true);
  });

  test("has the health codes of the control plane as they are, and names none that is not", () => {
    const rows = page.split("\n").filter((line) => /^\| `[A-Z_]+` \| (?:warn|error) \|/.test(line));
    const told = rows.map((row) => row.split(" | ").slice(0, 2));
    const wanted = CONTROL_CODES.map((code) => [`| \`${code}\``, HEALTH_CODES[code].severity]);
    expect(told.sort()).toEqual(wanted.sort());
    const named = quotedIn(page).filter((word) =>
      /^(?:KV_(?!CONTROL$)|NATS_|AUDIT_)[A-Z_]+$/.test(word),
    );
    const known: readonly string[] = HEALTH_CODE_NAMES;
    expect(named.filter((word) => !known.includes(word))).toEqual([]);
  });

  test("names metrics that there are, with labels that they have", () => {
    const specs = new Map(Object.entries(METRICS));
    const named = [...page.matchAll(/`(hearth_[a-z_]+)(?:\{([a-z,]+)(=[^}]*)?\})?`/g)];
    expect(named.length).toBeGreaterThan(20);
    for (const [, name = "", labels = ""] of named) {
      const spec = specs.get(name);
      expect([name, spec !== undefined]).toEqual([name, true]);
      const known = Object.keys(spec!.labels);
      expect([
        name,
        labels.split(",").filter((label) => label !== "" && !known.includes(label)),
      ]).toEqual([name, []]);
    }
  });

  test("says of every metric of the control plane when to look", () => {
    const charted = firstCells("Metrics to chart and to alert on").flatMap(quotedIn);
    const names = charted.map((name) => name.replace(/\{.*/, ""));
    const control = Object.keys(METRICS).filter((name) =>
      /^hearth_(?:hold|held|kept|command|audit|ledger|bus)/.test(name),
    );
    expect(control.filter((name) => !names.includes(name))).toEqual([]);
  });

  test("names keys of the configuration that there are", () => {
    const sections = new Set(SCHEMA_KEYS.map(({ section }) => section as string));
    const keys = new Set([...SCHEMA_KEYS, ...ROUTER_BOOK.keys].map(({ name }) => name as string));
    const named = quotedIn(page).filter((word) => /^[a-z]+\.[a-z_]+$/.test(word));
    const ours = named.filter((word) => sections.has(word.split(".")[0]!));
    expect(ours.length).toBeGreaterThan(20);
    expect(ours.filter((word) => !keys.has(word))).toEqual([]);
  });

  test("names refusals that there are", () => {
    const row = page.split("\n").find((line) => line.startsWith("| commands are refused"))!;
    const words = quotedIn(row.split(" | ")[1]!).filter((word) => word !== "reason");
    expect(words.filter((word) => !(word in REFUSALS))).toEqual([]);
  });
});

/** The block of the page that is the server's, and what each user of it has for a password. */
const conf = /```conf\n([\s\S]*?)```/.exec(page)![1]!;
const passwordOf = (user: string) =>
  new RegExp(`user: "${user}", password: "([^"]+)"`).exec(conf)![1]!;

const connectAs = (user: string, { tcpPort: port }: NatsServer) =>
  connect({ port, user, pass: passwordOf(user) });

async function isListed(server: NatsServer): Promise<boolean> {
  const nc = await connectAs("operator", server);
  const entry = await (await new Kvm(nc).open("kv-workers")).get("gpu-01");
  await nc.close();
  return entry?.operation === "PUT";
}

async function makeStreams(server: NatsServer): Promise<void> {
  const nc = await connectAs("operator", server);
  const manager = await jetstreamManager(nc);
  await manager.streams.add({ name: "KV_CONTROL", subjects: ["kv-control-gpu-01"] });
  await new Kvm(nc).create("kv-workers", { ttl: 30_000 });
  await nc.close();
}

/** Commands permitted to an agent and a router, with the agent connected in this way. */
async function work(server: NatsServer, folder: string, way: { readonly url: string }) {
  const userFile = (user: string) => {
    const path = join(folder, user);
    writeFileSync(path, `${user}\n${passwordOf(user)}\n`, { mode: 0o600 });
    return path;
  };
  const user_file = userFile("agent-gpu-01");
  const nats = { user_file, inbox_prefix: "_INBOX.gpu-01", receipts: true, ...way };
  const control = { issuers: "router-front purge subject" };
  await using agent = await AgentProcess.start({
    config: { node: { id: "gpu-01" }, nats, control },
  });
  const isConnected = async () => (await agent.metric("hearth_bus_connected")) === 1;
  await waitFor(isConnected, TIMEOUT_MS, "the connection");
  await using router = connectControl({
    nats: {
      ...{ url: server.tcpUrl, inboxPrefix: "_INBOX.router" },
      credentials: { userFile: userFile("router") },
    },
    ...{ issuer: "router-front", ownSubject: true },
  });
  expect((await router.workers(2_000)).map(({ id }) => id)).toEqual(["gpu-01"]);
  const sent = await router.send("gpu-01", pin([111]), { deadlineMs: TIMEOUT_MS });
  expect(sent).toMatchObject({ kind: "receipt", receipt: { counts: { missing: 1 } } });
  const removed = await router.send("gpu-01", flush(), { deadlineMs: TIMEOUT_MS });
  expect(removed).toMatchObject({ kind: "receipt", receipt: { status: "ok" } });
  const all = await router.broadcast(think([222], true), { deadlineMs: TIMEOUT_MS });
  expect(all.receipts).toMatchObject([{ status: "partial", issuer: "router-front" }]);
  if ("workers_bucket" in way) await waitFor(() => isListed(server), TIMEOUT_MS, "its entry");
}

describeNats("the server of docs/operating/operations.md", () => {
  test(
    "lets an agent and a router do their work, and a router no more",
    () =>
      withTempDir(async (folder) => {
        await using server = await NatsServer.start({ jetStream: true, lines: conf.split("\n") });
        await makeStreams(server);
        const streams = { command_stream: "KV_CONTROL", workers_bucket: "kv-workers" };
        await work(server, folder, { url: server.tcpUrl });
        for (const url of [server.tcpUrl, server.wsUrl]) {
          await work(server, folder, { url, ...streams });
        }
        expect(server.log()).not.toContain("Violation");
        await using nc = await connectAs("router", server);
        const refused = [
          ["router", "kv-control-events-gpu-01"],
          ["router", "kv-control-gpu-01"],
          ["router", "kv-control-gpu-01.ops"],
          ["agent-gpu-01", "kv-control-gpu-01.router-front"],
          ["agent-gpu-01", "_INBOX.gpu-02.x"],
        ] as const;
        await using agent = await connectAs("agent-gpu-01", server);
        for (const [user, subject] of refused) {
          (user === "router" ? nc : agent).publish(subject, "{}");
        }
        agent.subscribe("_INBOX.router.>");
        const violations = () =>
          server
            .log()
            .split("\n")
            .filter((line) => line.includes("Violation"));
        const isRefused = (subject: string) =>
          violations().some((line) => line.includes(`"${subject}"`));
        for (const [, subject] of refused) {
          await waitFor(() => isRefused(subject), TIMEOUT_MS, `the refusal of ${subject}`);
        }
        await waitFor(() => isRefused("_INBOX.router.>"), TIMEOUT_MS, "the refusal to listen");
      }),
    4 * TIMEOUT_MS,
  );
});
