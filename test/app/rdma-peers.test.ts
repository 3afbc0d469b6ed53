import { expect, test } from "bun:test";
import { join } from "node:path";
import {
  describeNative,
  makeCluster,
  type TestCluster,
  waitFor,
  withTempDir,
} from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";
import { AgentProcess, type ConfigKeys } from "./agent-process.ts";

const TIMEOUT_MS = 60_000;
const NAMES = ["a", "a/b", "a/b/c"] as const;

interface Host {
  readonly cluster: TestCluster;
  readonly worker: string;
  /** Where hosts meet that reach each other, and the faults of this one's device. */
  readonly verbs: string;
  readonly peers?: Record<string, unknown>;
}

/** An agent with a device of the stand-in, on a network that it trusts. */
function start({ cluster, worker, verbs, peers }: Host): Promise<AgentProcess> {
  const { certFile, keyFile, caFile } = cluster.files(worker);
  const config: ConfigKeys = {
    node: { id: worker },
    rdma: { library: standIn("libibverbs.so.1").path },
    peers: {
      ...{ cert_file: certFile, key_file: keyFile, ca_file: caFile, cluster: cluster.name },
      ...{ listen_stream: "127.0.0.1:0", listen_quic: "off" },
      ...{ summaries: "200ms", trusted_network: true, ...peers },
    },
  };
  return AgentProcess.start({ config, environment: { STANDIN_VERBS: verbs } });
}

/** As another host's configuration names it. */
async function placeOf(agent: AgentProcess, worker: string): Promise<string> {
  const { stream, rdma } = await agent.logged("listening for peers");
  const portOf = (place: unknown) => String(place).split(":").at(-1);
  return `${worker}@127.0.0.1:${portOf(stream)}${rdma === undefined ? "" : `//${portOf(rdma)}`}`;
}

// biome-ignore lint/suspicious/noExplicitAny: tests look at what they name
async function peersOf(agent: AgentProcess): Promise<any> {
  return ((await (await agent.get("/v1/peers")).json()) as Record<string, unknown>).peers;
}

/** Two agents, the second of which knows the first, with an engine on each. */
async function pair(folder: string, faults = "", more: Record<string, unknown> = {}) {
  await using stack = new AsyncDisposableStack();
  const cluster = makeCluster(join(folder, "ca"));
  const dir = `dir=${folder}`;
  const a = stack.use(await start({ cluster, worker: "a", verbs: dir }));
  const peers = { peers: await placeOf(a, "a"), ...more };
  const b = stack.use(await start({ cluster, worker: "b", verbs: `${dir};${faults}`, peers }));
  const [there, here] = [stack.use(await a.connect()), stack.use(await b.connect())];
  await there.put(...NAMES);
  const reads = async () => (await here.get(...NAMES)).every((outcome) => outcome === "ok");
  const ended = stack.move();
  return { a, b, here, reads, [Symbol.asyncDispose]: () => ended.disposeAsync() };
}

describeNative("agents with RDMA devices", () => {
  test(
    "agents read blocks over RDMA and the transfers are reported",
    () =>
      withTempDir(async (folder) => {
        await using hosts = await pair(folder, "", { transport: "rdma,stream" });
        const { a, b } = hosts;
        await waitFor(() => hosts.reads(), TIMEOUT_MS, "blocks of the other host");
        expect(await peersOf(b)).toMatchObject([
          { worker_id: "a", state: "linked", transport: "rdma", pulled_blocks: 3 },
        ]);
        expect(await b.metric("hearth_peer_blocks_total", "rdma")).toBe(3);
        expect(await b.metric("hearth_peer_bytes_total", "rdma")).toBe(15_000);
        expect(await b.metric("hearth_peer_pull_seconds_count", "rdma")).toBe(3);
        expect(await a.metric("hearth_peer_inbound_links", "rdma")).toBe(1);
        expect(await b.kill("SIGTERM")).toBe(0);
        expect(await a.kill("SIGTERM")).toBe(0);
        expect([...a.words, ...b.words]).toEqual([]);
      }),
    TIMEOUT_MS,
  );

  test(
    "agents use RDMA once both know of each other's device",
    () =>
      withTempDir(async (folder) => {
        await using hosts = await pair(folder);
        const { b, here } = hosts;
        const reads = async (name: (typeof NAMES)[number]) => (await here.get(name))[0] === "ok";
        for (const name of NAMES) await waitFor(() => reads(name), TIMEOUT_MS, `block ${name}`);
        const blocks = (transport: string) => b.metric("hearth_peer_blocks_total", transport);
        expect((await blocks("stream")) + (await blocks("rdma"))).toBe(3);
        expect(await blocks("rdma")).toBeGreaterThan(0);
      }),
    TIMEOUT_MS,
  );

  test(
    "agents fall back to the stream and report it if a device fails",
    () =>
      withTempDir(async (folder) => {
        await using hosts = await pair(folder, "read=12@1+", { transport: "rdma,stream" });
        const { b } = hosts;
        await waitFor(() => hosts.reads(), TIMEOUT_MS, "blocks of the other host");
        expect(await b.metric("hearth_peer_blocks_total", "rdma")).toBe(0);
        expect(await b.metric("hearth_peer_blocks_total", "stream")).toBe(3);
        expect((await peersOf(b))[0].transports_down).toMatchObject([{ transport: "rdma" }]);
      }),
    TIMEOUT_MS,
  );
});
