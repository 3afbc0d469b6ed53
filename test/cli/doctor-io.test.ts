import { describe, expect, test } from "bun:test";
import { chmodSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ManualClock } from "../support/index.ts";
import { hostMaker, look } from "./doctor-host.ts";

const { host, find } = hostMaker();

describe("O_DIRECT on a path", () => {
  test("the O_DIRECT check writes a page past the cache, reads it back and leaves no file", async () => {
    const folder = join(host(), "run");
    const check = await find(`O_DIRECT ${folder}`, {}, { directPaths: [folder] });
    expect(["ok", "warn"]).toContain(check.status);
    expect(check.found).toMatch(/^(a page was written|works, but|refused)/);
    expect(readdirSync(folder)).toEqual(["hearth"]);
  });

  test("the O_DIRECT check reports a folder on a memory file system", async () => {
    const check = await find("O_DIRECT /dev/shm", {}, { directPaths: ["/dev/shm"] });
    expect(check.status).not.toBe("ok");
  });

  test("the O_DIRECT check fails if the folder is missing", async () => {
    const check = await find("O_DIRECT /no/such", {}, { directPaths: ["/no/such"] });
    expect(check).toMatchObject({ status: "fail", found: expect.stringContaining("ENOENT") });
  });
});

describe("NATS", () => {
  /** A server that sends `greeting` on each connection. */
  function server(greeting: string | null) {
    const listener = Bun.listen({
      hostname: "127.0.0.1",
      port: 0,
      socket: {
        open: (socket) => void (greeting === null ? 0 : socket.write(greeting)),
        data: () => undefined,
      },
    });
    return { port: listener.port, [Symbol.dispose]: () => listener.stop(true) };
  }

  test("a NATS server is recognised by its greeting, and no password is printed", async () => {
    using nats = server('INFO {"server_id":"X","version":"2.10.7","port":4222}\r\n');
    const natsUrl = `nats://user:secret@127.0.0.1:${nats.port}`;
    expect(await find("NATS", {}, { natsUrl })).toEqual({
      name: "NATS",
      status: "ok",
      found: `127.0.0.1:${nats.port} runs nats-server 2.10.7`,
    });
    const plain = await find("NATS", {}, { natsUrl: `127.0.0.1:${nats.port}` });
    expect(plain.status).toBe("ok");
  });

  test("a port with a server that is not NATS is reported as such", async () => {
    using other = server("SSH-2.0-OpenSSH_9.2\r\n");
    const check = await find("NATS", {}, { natsUrl: `nats://127.0.0.1:${other.port}` });
    expect(check).toMatchObject({ status: "warn", found: expect.stringContaining("not as NATS") });
  });

  test("a WebSocket server passes once it is connected, because it waits for the client", async () => {
    using quiet = server(null);
    const check = await find("NATS", {}, { natsUrl: `ws://127.0.0.1:${quiet.port}` });
    expect(check.status).toBe("ok");
  });

  test("a silent server fails the check after the timeout", async () => {
    using quiet = server(null);
    const clock = new ManualClock();
    const natsUrl = `nats://127.0.0.1:${quiet.port}`;
    const pending = look(host(), { clock, natsUrl, natsTimeoutMs: 500 });
    let isOver = false;
    pending.then(() => (isOver = true));
    while (!isOver) await clock.advanceAsync(50);
    const check = (await pending).checks.find(({ name }) => name === "NATS")!;
    expect(["warn", "fail"]).toContain(check.status);
    expect(clock.pending).toBe(0);
  });

  test("a refused connection fails the check, as does an invalid URL", async () => {
    const gone = server(null);
    gone[Symbol.dispose]();
    const refused = await find("NATS", {}, { natsUrl: `nats://127.0.0.1:${gone.port}` });
    expect(refused).toMatchObject({ status: "fail", found: expect.stringContaining("REFUSED") });
    for (const natsUrl of ["http://a", "nats://", "", "nats://a:99999999"]) {
      const check = await find("NATS", {}, { natsUrl });
      expect(check.found).toBe("the URL names no server");
    }
  });
});

describe("the engine socket's folder", () => {
  test("the socket folder is reported as missing, too open, of another owner, or good", async () => {
    const missing = await find("engine socket", { "/run/hearth/.keep": null });
    expect(missing.advice).toContain("install -d -m 0750 /run/hearth");

    const root = host();
    const status = async (mode: number, uid?: number) => {
      chmodSync(join(root, "/run/hearth"), mode);
      const { checks } = await look(root, uid === undefined ? {} : { uid });
      return checks.find(({ name }) => name === "engine socket")!;
    };
    expect((await status(0o755)).advice).toContain("chmod 0750 /run/hearth");
    expect((await status(0o770)).status).toBe("warn");
    expect((await status(0o750)).found).toContain("mode 0750");
    expect((await status(0o700)).status).toBe("ok");
    expect((await status(0o750, 54_321)).advice).toContain("as its owner");
  });

  test("a running agent's socket is distinguished from a stale one", async () => {
    const root = host();
    const path = join(root, "/run/hearth/engine.sock");
    const said = async () =>
      (await look(root)).checks.find(({ name }) => name === "engine socket")!.found;
    expect(await said()).toContain("no agent runs");
    const listener = Bun.listen({ unix: path, socket: { data: () => undefined } });
    expect(await said()).toContain("an agent answers");
    listener.stop(true);
    rmSync(path, { force: true });
    writeFileSync(path, "");
    expect(await said()).toContain("left over");
  });
});
