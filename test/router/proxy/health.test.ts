import { expect, test } from "bun:test";
import { join } from "node:path";
import { describeNative, waitFor } from "../../support/index.ts";
import { POLITE } from "./mock-engine.ts";
import { deadUrl, RawEngine } from "./raw-engine.ts";
import { MODEL, Rig, type RigOptions } from "./rig.ts";

const CHAT = "/v1/chat/completions";
const ASK = { model: MODEL, messages: [{ role: "user", content: "Hello?" }], max_tokens: 6 };
const CHECKS = { healthEveryMs: 20, healthTimeoutMs: 1_000 };

/** Round robin, so that each worker gets requests. */
function openRig({ settings, ...more }: RigOptions = {}) {
  return Rig.open({
    router: { mode: "round-robin" },
    settings: { ...CHECKS, ...settings },
    ...more,
  });
}

function workerOf(response: Response): string | null {
  return response.headers.get("x-hearth-worker");
}

async function areOut(rig: Rig, count: number): Promise<void> {
  await waitFor(() => rig.proxy.snapshot().workersOut === count);
}

describeNative("a worker that does not answer its health checks", () => {
  for (const [how, health] of [
    ["is silent", null],
    ["answers 503", 503],
  ] as const) {
    test(`${how}: excludes the worker until it answers`, async () => {
      await using rig = await openRig();
      const [bad, good] = [rig.engine("bad"), rig.engine("good")];
      await waitFor(() => bad.healthChecks > 0 && good.healthChecks > 0);
      bad.manners = { ...POLITE, health };
      await areOut(rig, 1);
      for (let i = 0; i < 4; i++) expect(workerOf(await rig.post(CHAT, ASK))).toBe("good");
      expect(bad.seen).toHaveLength(0);
      bad.manners = POLITE;
      await areOut(rig, 0);
      const workers = [await rig.post(CHAT, ASK), await rig.post(CHAT, ASK)].map(workerOf);
      expect(workers.sort()).toEqual(["bad", "good"]);
      expect(rig.workers).toEqual(["bad out", "bad back"]);
      expect(rig.proxy.snapshot().timesOut).toBe(1);
    });
  }

  test("a stopped server is excluded before any request reaches it", async () => {
    await using rig = await openRig();
    rig.worker("dead", deadUrl());
    const good = rig.engine("good");
    await areOut(rig, 1);
    for (let i = 0; i < 3; i++) expect((await rig.post(CHAT, ASK)).status).toBe(200);
    expect(good.seen).toHaveLength(3);
    expect(rig.proxy.snapshot().retries).toBe(0);
  });

  test("unanswered requests of a silent worker are resent to another worker once", async () => {
    await using rig = await openRig();
    const [bad, good] = [rig.engine("bad"), rig.engine("good")];
    bad.manners = { ...POLITE, headMs: 60_000 };
    const waiting = [rig.post(CHAT, { ...ASK, stream: true }), rig.post(CHAT, ASK)];
    await waitFor(() => bad.seen.length === 1 && good.seen.length === 1);
    bad.manners = { ...bad.manners, health: null };
    for (const response of await Promise.all(waiting)) {
      expect([response.status, workerOf(response)]).toEqual([200, "good"]);
    }
    await waitFor(() => bad.aborted === 1);
    expect(rig.proxy.snapshot()).toMatchObject({ retries: 1 });
  });

  test("unanswered requests are resent to a worker whose KV events are missing", async () => {
    await using rig = await openRig();
    const [bad, good] = [rig.engine("bad"), rig.engine("good")];
    bad.manners = { ...POLITE, headMs: 60_000 };
    const stale = rig.table.targets.find(({ worker }) => worker === "good")!;
    rig.table.setState(stale.id, "stale");
    const waiting = rig.post(CHAT, ASK);
    await waitFor(() => bad.seen.length === 1);
    bad.manners = { ...bad.manners, health: null };
    expect(workerOf(await waiting)).toBe("good");
    expect(good.seen).toHaveLength(1);
  });

  test("an incomplete answer that is not a stream is resent to another worker", async () => {
    await using rig = await openRig();
    const head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n";
    let [isStopped, hasBegun] = [false, false];
    using bad = new RawEngine((socket, _, text) => {
      if (isStopped) return;
      if (!text.startsWith("POST")) {
        socket.write("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
      } else {
        hasBegun = true;
        socket.write(`${head}{"choices"`);
      }
    });
    rig.worker("bad", bad.url);
    const waiting = rig.post(CHAT, ASK);
    await waitFor(() => hasBegun);
    rig.engine("good");
    isStopped = true;
    const response = await waiting;
    expect([response.status, workerOf(response)]).toEqual([200, "good"]);
  });

  test("a stream that has begun stays with its worker", async () => {
    await using rig = await openRig();
    const [bad, good] = [rig.engine("bad"), rig.engine("good")];
    for (const engine of [bad, good]) engine.manners = { ...POLITE, tokenMs: 20 };
    const stream = await rig.post(CHAT, { ...ASK, stream: true, max_tokens: 60 });
    const [own, other] = workerOf(stream) === "bad" ? [bad, good] : [good, bad];
    own.manners = { ...own.manners, health: null };
    await areOut(rig, 1);
    expect(await stream.text()).toEndWith("data: [DONE]\n\n");
    expect(other.seen).toHaveLength(0);
  });

  test("with resend off, requests stay with their worker", async () => {
    await using rig = await openRig({ settings: { isRetriedAfterSent: false } });
    const [bad, good] = [rig.engine("bad"), rig.engine("good")];
    const manners = { ...POLITE, headMs: 1_000 };
    for (const engine of [bad, good]) engine.manners = manners;
    const waiting = rig.post(CHAT, ASK);
    await waitFor(() => bad.seen.length + good.seen.length === 1);
    const own = bad.seen.length === 1 ? bad : good;
    own.manners = { ...manners, health: 500 };
    await areOut(rig, 1);
    expect((await waiting).status).toBe(200);
    expect(bad.seen.length + good.seen.length).toBe(1);
  });

  test("a silent worker is used if no other worker is left", async () => {
    await using rig = await openRig();
    const engine = rig.engine("only");
    engine.manners = { ...POLITE, health: 503, headMs: 300 };
    await areOut(rig, 1);
    expect((await rig.post(CHAT, ASK)).status).toBe(200);
    expect(engine.seen).toHaveLength(1);
  });

  test("the proxy answers 503 to probes if no worker is healthy", async () => {
    await using rig = await openRig();
    const engine = rig.engine("only");
    engine.manners = { ...POLITE, health: 503 };
    await areOut(rig, 1);
    for (const path of ["/health", "/ping"]) {
      expect((await fetch(`${rig.url}${path}`)).status).toBe(503);
    }
    engine.manners = POLITE;
    await areOut(rig, 0);
    expect((await fetch(`${rig.url}/health`)).status).toBe(200);
    rig.proxy.drain();
    expect((await fetch(`${rig.url}/health`)).status).toBe(503);
  });
});

describeNative("a worker that is busy", () => {
  test("a prompt that takes longer than the health timeout stays with its worker", async () => {
    await using rig = await openRig();
    const [first, second] = [rig.engine("a"), rig.engine("b")];
    for (const engine of [first, second]) engine.manners = { ...POLITE, headMs: 1_500 };
    expect((await rig.post(CHAT, ASK)).status).toBe(200);
    expect(first.seen.length + second.seen.length).toBe(1);
    expect(rig.proxy.snapshot()).toMatchObject({ timesOut: 0, retries: 0 });
  });

  test("any answer below 500 to /health counts as alive", async () => {
    await using rig = await openRig();
    const engine = rig.engine("a");
    engine.manners = { ...POLITE, health: 404 };
    const before = engine.healthChecks;
    await waitFor(() => engine.healthChecks > before + 3);
    expect(rig.proxy.snapshot().timesOut).toBe(0);
  });
});

describeNative("an engine process that is stopped behind a server that answers", () => {
  test("a stopped engine process is excluded while its event socket is silent", async () => {
    const program = [process.execPath, join(import.meta.dir, "publisher-main.ts")];
    const publisher = Bun.spawn(program, { stdin: "pipe", stdout: "pipe", stderr: "inherit" });
    try {
      const { value } = await publisher.stdout.getReader().read();
      const eventsEndpoint = new TextDecoder().decode(value).trim();
      await using rig = await openRig();
      const [bad, good] = [rig.engine("bad"), rig.engine("good")];
      bad.manners = { ...POLITE, headMs: 60_000, eventsEndpoint };
      const waiting = [rig.post(CHAT, ASK), rig.post(CHAT, ASK)];
      await waitFor(() => bad.seen.length === 1 && good.seen.length === 1);
      await waitFor(() => rig.proxy.snapshot().pulses === 1);
      expect(rig.proxy.snapshot().timesOut).toBe(0);
      publisher.kill("SIGSTOP");
      for (const response of await Promise.all(waiting)) expect(workerOf(response)).toBe("good");
      expect(rig.proxy.snapshot()).toMatchObject({ workersOut: 1, retries: 1 });
      publisher.kill("SIGCONT");
      await areOut(rig, 0);
    } finally {
      publisher.kill("SIGKILL");
      await publisher.exited;
    }
  });
});
