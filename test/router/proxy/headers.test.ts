import { expect, test } from "bun:test";
import { describeNative } from "../../support/index.ts";
import { RawEngine } from "./raw-engine.ts";
import { MODEL, Rig } from "./rig.ts";

const CHAT = "/v1/chat/completions";
const BODY = JSON.stringify({ model: MODEL, messages: [{ role: "user", content: "Hello?" }] });

/** Status line and body of the answer to a request with these raw header lines. */
async function rawPost(rig: Rig, lines: readonly string[], path = CHAT): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  let text = "";
  const socket = await Bun.connect({
    hostname: "127.0.0.1",
    port: Number(new URL(rig.url).port),
    socket: {
      data: (_socket, bytes) => {
        text += Buffer.from(bytes).toString("latin1");
      },
      close: () => resolve(text),
    },
  });
  const head = [`POST ${path} HTTP/1.1`, "Host: localhost", "Connection: close", ...lines];
  const all = `${head.join("\r\n")}\r\nContent-Length: ${BODY.length}\r\n\r\n${BODY}`;
  socket.write(Buffer.from(all, "latin1"));
  return promise;
}

describeNative("a client header that HTTP does not allow", () => {
  test("an invalid client header is answered 400, and no worker is blamed", async () => {
    await using rig = await Rig.open({ router: { mode: "round-robin" } });
    const engines = [rig.engine("a"), rig.engine("b")];
    for (let i = 0; i < 3; i++) {
      const answer = await rawPost(rig, ["X-Odd: a\x7fb", "x-dynamo-worker-instance-id: a"]);
      expect(answer).toStartWith("HTTP/1.1 400");
      expect(answer).toContain("The header x-odd contains a character");
    }
    expect(engines.map(({ seen }) => seen.length)).toEqual([0, 0]);
    const workers = [await rig.post(CHAT, BODY), await rig.post(CHAT, BODY)].map((response) =>
      response.headers.get("x-hearth-worker"),
    );
    expect(workers.sort()).toEqual(["a", "b"]);
    expect(rig.proxy.snapshot().retries).toBe(0);
  });

  test("an invalid client header is answered in the shape of the requested API", async () => {
    await using rig = await Rig.open();
    rig.engine("a");
    const answer = await rawPost(rig, ["X-Odd: \x7f"], "/v1/messages");
    expect(answer).toContain('{"type":"error","error":{"type":"invalid_request_error"');
  });

  test("all bytes that HTTP allows in a header are forwarded", async () => {
    await using rig = await Rig.open();
    const engine = rig.engine("a");
    const value = "a\tb ~ \u00fc\u00ff";
    expect(await rawPost(rig, [`X-Odd: ${value}`])).toStartWith("HTTP/1.1 200");
    expect(engine.seen[0]?.headers.get("x-odd")).toBe(value);
  });
});

describeNative("a worker with an invalid URL", () => {
  test("an invalid worker URL is a proxy error, and no other worker is tried", async () => {
    await using rig = await Rig.open({ router: { mode: "round-robin" } });
    rig.worker("odd", "http://[::bad");
    const good = rig.engine("good");
    const statuses = [await rig.post(CHAT, BODY), await rig.post(CHAT, BODY)].map(
      ({ status }) => status,
    );
    expect(statuses.sort()).toEqual([200, 500]);
    expect(good.seen).toHaveLength(1);
    expect(rig.faults).toHaveLength(1);
    expect(String(rig.faults[0])).toContain("a request to odd could not be sent");
    expect(rig.proxy.snapshot()).toMatchObject({ retries: 0, active: 0 });
  });
});

describeNative("credentials of clients", () => {
  test("the model list does not forward client credentials", async () => {
    await using rig = await Rig.open({ settings: { authorization: "pass" } });
    const [first, second] = [rig.engine("a"), rig.engine("b")];
    const headers = { authorization: "Bearer mine", "x-api-key": "mine", cookie: "id=mine" };
    await (await fetch(`${rig.url}/v1/models`, { headers })).text();
    const asked = [...first.seen, ...second.seen];
    expect(asked).toHaveLength(1);
    for (const name of Object.keys(headers)) expect(asked[0]?.headers.get(name)).toBeNull();
  });

  test("the engine's token replaces client credentials in both headers", async () => {
    await using rig = await Rig.open({ settings: { authorization: { value: "Bearer engine" } } });
    const engine = rig.engine("a");
    await (await rig.post(CHAT, BODY, { headers: { "x-api-key": "mine" } })).text();
    expect(engine.seen[0]?.headers.get("authorization")).toBe("Bearer engine");
    expect(engine.seen[0]?.headers.get("x-api-key")).toBeNull();
    await (await fetch(`${rig.url}/v1/models`)).text();
    expect(engine.seen[1]?.headers.get("authorization")).toBe("Bearer engine");
  });
});

describeNative("a worker header that HTTP does not allow", () => {
  test("an invalid worker header ends the request with an error", async () => {
    using engine = new RawEngine((socket) => {
      socket.write(Buffer.from("HTTP/1.1 200 OK\r\nX-Odd: a\x7fb\r\nContent-Length: 2\r\n\r\n{}"));
    });
    await using rig = await Rig.open();
    rig.worker("a", engine.url);
    const response = await rig.post(CHAT, BODY);
    expect([200, 502]).toContain(response.status);
    expect(rig.proxy.snapshot().active).toBe(0);
    expect(engine.requests).toBe(1);
  });
});
