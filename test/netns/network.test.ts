import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { noteSkip } from "../support/index.ts";
import { Network, netnsRefusal } from "./network.ts";

const refusal = netnsRefusal();
if (refusal !== null) noteSkip("netns", refusal);

describe.skipIf(refusal !== null && process.env.REQUIRE_NETNS !== "1")(
  "a network of namespaces",
  () => {
    let network: Network;
    beforeAll(async () => {
      network = await Network.make(2);
    });
    afterAll(() => network[Symbol.asyncDispose]());

    /** Packets that come back, of 40; and the smallest round trip. */
    async function ping(from: number, to: string): Promise<{ came: number; ms: number }> {
      const words = ["python3", "-c", PING, to];
      const child = Bun.spawn([...network.within(from), ...words], { stderr: "inherit" });
      return JSON.parse(await new Response(child.stdout).text());
    }

    /** An echo server on each host. */
    let echoes: Bun.Subprocess[];
    beforeAll(async () => {
      echoes = [0, 1].map((host) =>
        Bun.spawn([...network.within(host), "python3", "-c", ECHO], { stdout: "pipe" }),
      );
      for (const echo of echoes) await (echo.stdout as ReadableStream).getReader().read();
    });
    afterAll(() => {
      for (const echo of echoes) echo.kill();
    });

    test("carries packets, also from and to this process", async () => {
      expect((await ping(0, network.address(1))).came).toBe(40);
      expect((await ping(1, network.address(0))).came).toBe(40);
      expect((await network.traffic()).passed).toBeGreaterThanOrEqual(160);
      const child = Bun.spawn(["python3", "-c", PING, network.address(1)]);
      expect(JSON.parse(await new Response(child.stdout).text()).came).toBe(40);
    });

    test("delays them, loses some, and cuts one direction", async () => {
      await network.everywhere({ delayMs: 20 });
      expect((await ping(0, network.address(1))).ms).toBeGreaterThan(40);
      await network.everywhere({ loss: 0.5 });
      expect((await ping(0, network.address(1))).came).toBeWithin(1, 30);
      await network.everywhere({});
      await network.path(1, 0, { cut: true });
      const before = await network.traffic();
      expect((await ping(0, network.address(1))).came).toBe(0);
      const after = await network.traffic();
      expect(after.cut - before.cut).toBe(40);
      expect(after.passed - before.passed).toBe(40);
      await network.path(1, 0, {});
      expect((await ping(0, network.address(1))).came).toBe(40);
    });
  },
);

const ECHO = `
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 7))
print("ready", flush=True)
while True:
    data, who = s.recvfrom(2048)
    s.sendto(data, who)
`;

const PING = `
import json, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1.0); s.connect((sys.argv[1], 7))
sent = {}; came = 0; least = 1e9
for i in range(40):
    sent[i] = time.monotonic(); s.send(bytes([i]) * 100)
try:
    while came < 40:
        i = s.recv(2048)[0]; came += 1
        least = min(least, time.monotonic() - sent[i])
except OSError:
    pass
print(json.dumps({"came": came, "ms": least * 1000}))
`;
