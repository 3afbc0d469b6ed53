import { expect, test } from "bun:test";
import { join } from "node:path";
import type { LookupReply } from "../../src/engine/protocol/index.ts";
import { lookupOf, Member } from "../engine/engine-member.ts";
import { describeNative, makeCluster, waitFor, withTempDir } from "../support/index.ts";
import { AgentProcess, type ConfigKeys } from "./agent-process.ts";

const TIMEOUT_MS = 60_000;
const PROMPT = ["k0", "k1", "k2", "k3"];
/** RAM, SSD and peers. */
const TIERS = 14;

/** Two hosts that know each other, whose summaries are sent too seldom to help. */
async function pair(folder: string) {
  await using stack = new AsyncDisposableStack();
  const cluster = makeCluster(join(folder, "ca"));
  const configOf = (worker: string, peers: Record<string, unknown> = {}): ConfigKeys => {
    const { certFile, keyFile, caFile } = cluster.files(worker);
    return {
      node: { id: worker },
      peers: {
        ...{ cert_file: certFile, key_file: keyFile, ca_file: caFile, cluster: cluster.name },
        ...{ listen_stream: "127.0.0.1:0", listen_quic: "127.0.0.1:0" },
        ...{ summaries: "10m", ...peers },
      },
    };
  };
  const start = async (...config: Parameters<typeof configOf>) =>
    stack.use(await AgentProcess.start({ config: configOf(...config) }));
  const prefill = await start("prefill");
  const { stream } = await prefill.logged("listening for peers");
  const port = String(stream).split(":").at(-1);
  const decode = await start("decode", { peers: `prefill@127.0.0.1:${port}` });
  const producer = stack.use(await Member.connect(prefill.socketPath));
  const consumer = stack.use(await Member.connect(decode.socketPath));
  await producer.join("producer");
  await consumer.join("consumer");
  const ended = stack.move();
  return { producer, consumer, [Symbol.asyncDispose]: () => ended.disposeAsync() };
}

describeNative("a lookup that names the peer which computes the blocks", () => {
  const wish = (rest = {}) =>
    lookupOf(PROMPT, ["hold", "fetch", "wait", "progress"], {
      ...{ source: "prefill", tiers: TIERS },
      ...rest,
    });

  test(
    "a lookup fetches stored blocks from the peer and waits for announced ones",
    () =>
      withTempDir(async (folder) => {
        await using hosts = await pair(folder);
        const { producer, consumer } = hosts;
        await producer.put("k0", "k1");
        await producer.announce(PROMPT, 60_000);
        const partial: LookupReply[] = [];
        let isOver = false;
        const asked = consumer
          .lookup(wish(), (reply) => partial.push(reply))
          .finally(() => {
            isOver = true;
          });
        await waitFor(() => partial.some(({ ready }) => ready === 2), TIMEOUT_MS);
        const before = partial.length;
        await waitFor(() => partial.length > before + 20, TIMEOUT_MS);
        expect(isOver).toBe(false);
        expect(partial.at(-1)).toMatchObject({ leading: 2, ready: 2, announced: 2 });
        await producer.put(...PROMPT.slice(0, 3));
        await waitFor(() => partial.some(({ ready }) => ready === 3), TIMEOUT_MS);
        await producer.put(...PROMPT);
        expect(await asked).toMatchObject({ leading: 4, ready: 4, flags: 0 });
        expect(await consumer.get(...PROMPT)).toEqual(["ok", "ok", "ok", "ok"]);
      }),
    TIMEOUT_MS,
  );

  test(
    "a lookup ends early if the producer withdraws or sends nothing",
    () =>
      withTempDir(async (folder) => {
        await using hosts = await pair(folder);
        const { producer, consumer } = hosts;
        await producer.put("k0");
        await producer.announce(PROMPT, 60_000);
        const asked = consumer.lookup(wish());
        await producer.announce(PROMPT, 0, 2);
        expect(await asked).toMatchObject({ leading: 1, ready: 1, announced: 0 });
        const unknown = await consumer.lookup(wish({ source: "elsewhere" }));
        expect(unknown).toMatchObject({ leading: 1, ready: 1 });
      }),
    TIMEOUT_MS,
  );
});
