import { expect, test } from "bun:test";
import { copyFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { WorkerId } from "../../src/core/index.ts";
import { issueHost } from "../../src/peers/index.ts";
import {
  describeNative,
  describeNats,
  type HostFiles,
  makeCluster,
  NatsServer,
  type TestCluster,
  validFor,
  waitFor,
  withTempDir,
  writeCredentials,
} from "../support/index.ts";
import { AgentProcess, type ConfigKeys } from "./agent-process.ts";

const TIMEOUT_MS = 60_000;
const NAMES = ["a", "a/b", "a/b/c"] as const;

/** An agent with a certificate of the cluster, on ports that are free. */
function hostConfig(
  cluster: TestCluster,
  worker: string,
  peers: Record<string, unknown> = {},
): ConfigKeys {
  return { node: { id: worker }, peers: { ...keysOf(cluster.files(worker), cluster), ...peers } };
}

function keysOf({ certFile, keyFile, caFile }: HostFiles, { name }: TestCluster) {
  return {
    ...{ cert_file: certFile, key_file: keyFile, ca_file: caFile, cluster: name },
    ...{ listen_stream: "127.0.0.1:0", listen_quic: "127.0.0.1:0" },
    summaries: "200ms",
  };
}

/** As another host's configuration names it. */
async function placeOf(agent: AgentProcess, worker: string): Promise<string> {
  const { stream, quic } = await agent.logged("listening for peers");
  const portOf = (place: unknown) => String(place).split(":").at(-1);
  return `${worker}@127.0.0.1:${portOf(stream)}${quic === undefined ? "" : `/${portOf(quic)}`}`;
}

/** A member of what the API answers. */
// biome-ignore lint/suspicious/noExplicitAny: tests look at what they name
async function documentOf(agent: AgentProcess, path: string, member: string): Promise<any> {
  return ((await (await agent.get(path)).json()) as Record<string, unknown>)[member];
}

/** Two hosts, the second of which knows the first, with an engine on each. */
async function pair(
  folder: string,
  more: Record<string, unknown> = {},
  first: Record<string, unknown> = {},
) {
  await using stack = new AsyncDisposableStack();
  const cluster = makeCluster(join(folder, "ca"));
  const a = stack.use(await AgentProcess.start({ config: hostConfig(cluster, "a", first) }));
  const peers = { peers: await placeOf(a, "a"), ...more };
  const b = stack.use(await AgentProcess.start({ config: hostConfig(cluster, "b", peers) }));
  const [there, here] = [stack.use(await a.connect()), stack.use(await b.connect())];
  const ended = stack.move();
  const reads = async (...names: (typeof NAMES)[number][]) =>
    (await here.get(...names)).every((outcome) => outcome === "ok");
  const own = { cluster, a, b, there, here, reads };
  return { ...own, [Symbol.asyncDispose]: () => ended.disposeAsync() };
}

describeNative("agents of one cluster", () => {
  for (const transport of ["stream", "quic"]) {
    test(
      `an engine gets by ${transport} what only another host has`,
      () =>
        withTempDir(async (folder) => {
          await using hosts = await pair(folder, { transport });
          const { a, b, there, reads } = hosts;
          expect(await there.put(...NAMES)).toEqual(["ok", "ok", "ok"]);
          await waitFor(() => reads(...NAMES), TIMEOUT_MS, "blocks of the other host");
          expect(await documentOf(b, "/v1/peers", "peers")).toMatchObject([
            { worker_id: "a", origin: "static", state: "linked", transport, pulled_blocks: 3 },
          ]);
          expect(await b.metric("cgn_kvcached_quic_pulls_total", 'outcome="ok"')).toBe(3);
          expect(await b.metric("hearth_peer_pull_seconds_count", transport)).toBe(3);
          expect(await b.metric("hearth_peer_bytes_total", transport)).toBe(15_000);
          expect(await a.metric("hearth_peer_served_total", 'outcome="block"')).toBe(3);
          expect(await a.metric("hearth_peer_inbound_links", transport)).toBe(1);
          expect((await b.status()).peers).toMatchObject({ known: 1, down: 0, pulled_blocks: 3 });
          expect(await documentOf(b, "/v1/pulls?limit=1", "pulls")).toMatchObject([
            { outcome: "ok", priority: "acquire" },
          ]);
          expect(await b.kill("SIGTERM")).toBe(0);
          expect(await a.kill("SIGTERM")).toBe(0);
          // Nothing but log lines, such as a runtime's warning.
          expect([...a.words, ...b.words]).toEqual([]);
        }),
      TIMEOUT_MS,
    );
  }

  const clear = { cipher: "none", trusted_network: true };
  test.each([
    ["AES where that is one host's policy", { cipher: "aes-128-gcm" }, {}],
    ["nothing around them on a network that both trust", clear, clear],
    ["seals where only one of them trusts the network", clear, {}],
  ])(
    "blocks come with %s",
    (_, more, first) =>
      withTempDir(async (folder) => {
        await using hosts = await pair(folder, { transport: "stream", ...more }, first);
        await hosts.there.put(...NAMES);
        await waitFor(() => hosts.reads(...NAMES), TIMEOUT_MS, "blocks of the other host");
        expect(await documentOf(hosts.b, "/v1/peers", "peers")).toMatchObject([
          { transport: "stream", pulled_blocks: 3 },
        ]);
      }),
    TIMEOUT_MS,
  );

  test(
    "a warm command pulls by digest from the named host and the pull is traceable",
    () =>
      withTempDir(async (folder) => {
        await using hosts = await pair(folder, { summaries: "off" });
        const { b, there } = hosts;
        await there.put(...NAMES);
        const digests = await documentOf(hosts.a, "/v1/tree", "blocks");
        const keys = digests.map(({ digest }: { digest: string }) => digest);
        const body = JSON.stringify({ type: "Warm", block_keys: keys, sources: ["a"] });
        const headers = { "content-type": "application/json" };
        const url = `${(await b.logged("api listening")).url}/v1/commands`;
        const receipt = await (await fetch(url, { method: "POST", headers, body })).json();
        expect(receipt).toMatchObject({ status: "ok", counts: { done: 3, missing: 0 } });
        expect((await b.status()).ram.blocks).toBe(3);
        const pulls = await documentOf(b, `/v1/pulls?key=${keys[0]}`, "pulls");
        expect(pulls).toMatchObject([{ digest: keys[0], outcome: "ok", priority: "warm" }]);
      }),
    TIMEOUT_MS,
  );

  test(
    "a host that dies is a miss, an event and a health code; it comes back as another",
    () =>
      withTempDir(async (folder) => {
        await using hosts = await pair(folder, { cooldown_max: "500ms" });
        const { a, b, there, here, reads, cluster } = hosts;
        await there.put("a", "a/b");
        await waitFor(() => reads("a"), TIMEOUT_MS, "a block of the other host");
        const place = await placeOf(a, "a");
        const [stream, quic] = place.split(":").at(-1)!.split("/");
        await a.kill("SIGKILL");
        expect(["miss", "late"]).toContain((await here.get("a/b"))[0]!);
        const codes = async () =>
          (await b.status()).health.map(({ code }: { code: string }) => code);
        await waitFor(async () => (await codes()).includes("PEERS_DOWN"), TIMEOUT_MS);
        const kinds = async () =>
          (await documentOf(b, "/v1/events", "events")).map(({ kind }: { kind: string }) => kind);
        expect(await kinds()).toContain("peer_down");
        const listen = {
          listen_stream: `127.0.0.1:${stream}`,
          ...(quic === undefined ? {} : { listen_quic: `127.0.0.1:${quic}` }),
        };
        const config = hostConfig(cluster, "a", listen);
        await using again = await AgentProcess.start({ config });
        await using engine = await again.connect();
        await engine.put("a", "a/b", "a/b/c");
        await waitFor(() => reads("a/b/c"), TIMEOUT_MS, "a block of the host that came back");
        await waitFor(async () => !(await codes()).includes("PEERS_DOWN"), TIMEOUT_MS);
        expect(await kinds()).toContain("peer_restarted");
      }),
    TIMEOUT_MS,
  );

  test.each(["stream", "quic"])(
    "a suspended host does not delay another host's shutdown, by %s",
    (transport) =>
      withTempDir(async (folder) => {
        await using hosts = await pair(folder, { transport });
        const { a, b, there, here, reads } = hosts;
        await there.put("a", "a/b");
        await waitFor(() => reads("a"), TIMEOUT_MS, "a block of the other host");
        a.process.kill("SIGSTOP");
        const asked = here.get("a/b").catch(() => ["gone"]);
        expect(await b.kill("SIGTERM")).toBe(0);
        expect(["miss", "late", "gone"]).toContain((await asked)[0]!);
      }),
    TIMEOUT_MS,
  );

  test(
    "SIGHUP reads certificates, limits and hosts anew, and keeps what lives",
    () =>
      withTempDir(async (folder) => {
        const cluster = makeCluster(join(folder, "ca"));
        await using a = await AgentProcess.start({ config: hostConfig(cluster, "a") });
        const files = cluster.files("b");
        await using b = await AgentProcess.start({ config: hostConfig(cluster, "b") });
        await using there = await a.connect();
        await using here = await b.connect();
        await there.put("a");
        const endsOf = () => documentOf(b, "/v1/peers", "certificate_ends");
        const before = await endsOf();
        // Another key and certificate of the same host, for fewer days.
        const name = { cluster: cluster.name, worker: "b" as WorkerId };
        const validity = validFor(20);
        const { authority } = cluster;
        const { certificate, key } = issueHost({ authority, name, key: null, validity });
        const credentials = { ...cluster.host("b"), certificates: certificate, key };
        writeCredentials(join(folder, "ca", "b"), credentials);
        const more = { peers: await placeOf(a, "a"), progress: "3s" };
        b.configure({ node: { id: "b" }, peers: { ...keysOf(files, cluster), ...more } });
        b.process.kill("SIGHUP");
        const { changed } = await b.logged("configuration reloaded");
        expect(changed).toBe("peers.peers peers.progress");
        await waitFor(async () => (await endsOf()) !== before, TIMEOUT_MS, "the new certificate");
        const got = async () => (await here.get("a"))[0] === "ok";
        await waitFor(got, TIMEOUT_MS, "a block of a host that was named later");
        // A file that is none: said, and the one before stays.
        copyFileSync(files.certFile, `${files.certFile}.good`);
        writeFileSync(files.certFile, "nothing");
        b.process.kill("SIGHUP");
        const health = async () => (await b.status()).health;
        await waitFor(
          async () => JSON.stringify(await health()).includes("PEERS_FILES"),
          TIMEOUT_MS,
        );
        expect(await here.get("a")).toEqual(["ok"]);
        copyFileSync(`${files.certFile}.good`, files.certFile);
        b.process.kill("SIGHUP");
        await waitFor(async () => (await health()).length === 0, TIMEOUT_MS, "all well again");
      }),
    TIMEOUT_MS,
  );

  test(
    "a start without a good certificate, or on a port that is taken, is refused in words",
    () =>
      withTempDir(async (folder) => {
        const cluster = makeCluster(join(folder, "ca"));
        const start = async (config: ConfigKeys) => {
          await using agent = new AgentProcess({ config });
          expect(await agent.exited()).toBe(3);
          return agent.words.join("\n");
        };
        const good = hostConfig(cluster, "a");
        expect(await start({ ...good, node: { id: "other" } })).toContain("other");
        const none = { ...good.peers, key_file: join(folder, "none") };
        expect(await start({ ...good, peers: none })).toContain(join(folder, "none"));
        using taken = Bun.listen({
          hostname: "127.0.0.1",
          port: 0,
          socket: { data: () => undefined },
        });
        const listen_stream = `127.0.0.1:${taken.port}`;
        const words = await start({ ...good, peers: { ...good.peers, listen_stream } });
        expect(words).toContain(`peers.listen_stream: ${listen_stream} cannot be listened on`);
        expect(words).toContain("set a free port");
      }),
    TIMEOUT_MS,
  );

  test("an agent without [peers] says so", async () => {
    await using agent = await AgentProcess.start();
    expect(await (await agent.get("/v1/peers")).json()).toMatchObject({
      enabled: false,
      peers: [],
    });
    expect((await agent.status()).peers).toBeNull();
  });
});

describeNats("agents on one broker", () => {
  test(
    "agents on one broker find each other, pull blocks and announce their end",
    () =>
      withTempDir(async (folder) => {
        await using server = await NatsServer.start();
        const cluster = makeCluster(join(folder, "ca"));
        const start = (worker: string) =>
          AgentProcess.start({
            config: {
              ...hostConfig(cluster, worker),
              nats: { url: server.tcpUrl },
            },
          });
        await using a = await start("a");
        await using b = await start("b");
        await using there = await a.connect();
        await using here = await b.connect();
        await there.put(...NAMES);
        const all = async () => (await here.get(...NAMES)).every((outcome) => outcome === "ok");
        await waitFor(all, TIMEOUT_MS, "blocks of a host that announced itself");
        expect(await documentOf(b, "/v1/peers", "peers")).toMatchObject([
          { worker_id: "a", origin: "announced", hardware: { aes: expect.any(Boolean) } },
        ]);
        expect(await a.kill("SIGTERM")).toBe(0);
        const isAlone = async () => (await documentOf(b, "/v1/peers", "peers")).length === 0;
        await waitFor(isAlone, TIMEOUT_MS, "the goodbye");
        const events = await documentOf(b, "/v1/events", "events");
        const told = events.map(({ kind }: { kind: string }) => kind);
        expect(told).toEqual(expect.arrayContaining(["peer_came", "peer_went"]));
      }),
    TIMEOUT_MS,
  );
});
