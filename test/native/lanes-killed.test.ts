import { describe, expect, test } from "bun:test";
import { CIPHERS, type Cipher } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { waitFor } from "../support/wait.ts";
import { HANG_MS, HOST, MIB, newSession, openSide } from "./lanes-kit.ts";

const BYTES = 64 * MIB;

/** The other side: listens and sends on request, or dials and receives. */
const OTHER_SIDE = `
  import { loadNative, openLanes, Region } from "./src/native/index.ts";
  const [part, cipher, id, secret, port] = process.argv.slice(1);
  const bytes = ${BYTES};
  const arena = Region.create(loadNative(), { bytes, hugePages: "off", lockMemory: "off" });
  const lanes = openLanes(loadNative(), { region: arena, threads: 1, socketBytes: 0 });
  const session = {
    id: Uint8Array.fromHex(id), secret: Uint8Array.fromHex(secret), cipher, lanes: 2,
  };
  if (part === "sender") {
    const expected = lanes.expect(session, ${HANG_MS});
    console.log(lanes.listen("${HOST}", 0));
    const link = await expected;
    for await (const _ of Bun.stdin.stream()) void link.send(1, 0, bytes);
  } else {
    const link = await lanes.dial(session, "${HOST}", Number(port), ${HANG_MS});
    void link.receive(1, 0, bytes);
    console.log("announced");
  }
  await new Promise(() => {});
`;

function otherSide(words: readonly string[]) {
  const child = Bun.spawn([process.execPath, "-e", OTHER_SIDE, ...words], {
    cwd: `${import.meta.dir}/../..`,
    stdin: "pipe",
    stdout: "pipe",
    stderr: "inherit",
  });
  const reader = child.stdout.getReader();
  return {
    child,
    /** The next line it prints. */
    line: async () => new TextDecoder().decode((await reader.read()).value),
    [Symbol.dispose]: () => child.kill("SIGKILL"),
  };
}

function wordsOf(part: string, cipher: Cipher) {
  const session = newSession(cipher, 2);
  return { session, words: [part, cipher, session.id.toHex(), session.secret.toHex()] };
}

describeNative("lanes to a process that dies", () => {
  describe.each([...CIPHERS])("%s", (cipher) => {
    test("while it sends are broken, and nothing is admitted", async () => {
      await using side = openSide({ bytes: BYTES });
      const { session, words } = wordsOf("sender", cipher);
      using other = otherSide(words);
      const port = Number(await other.line());
      const receiver = await side.lanes.dial(session, HOST, port, HANG_MS);
      const received = receiver.receive(1, 0, BYTES);
      const never = receiver.receive(2, 0, BYTES);
      other.child.stdin.write("send");
      await other.child.stdin.flush();
      await waitFor(() => receiver.arrived(1) > 0, HANG_MS);
      other.child.kill("SIGKILL");
      expect(await received).toEqual({ ok: false, fault: "broken" });
      expect(await never).toEqual({ ok: false, fault: "broken" });
      expect(await receiver.ended).toBe("broken");
    });

    test("while it receives are broken", async () => {
      await using side = openSide({ bytes: BYTES });
      const port = side.lanes.listen(HOST, 0);
      const { session, words } = wordsOf("receiver", cipher);
      const expected = side.lanes.expect(session, HANG_MS);
      using other = otherSide([...words, String(port)]);
      const sender = await expected;
      expect(await other.line()).toContain("announced");
      // More than the buffers of both kernels hold.
      const sent = [1, 2, 3].map((i) => sender.send(i, 0, BYTES));
      other.child.kill("SIGKILL");
      const outcomes = await Promise.all(sent);
      expect(outcomes[2]).toEqual({ ok: false, fault: "broken" });
      expect(await sender.ended).toBe("broken");
    });
  });

  test("that stops reading are broken after a timeout", async () => {
    await using side = openSide({ bytes: BYTES });
    const port = side.lanes.listen(HOST, 0);
    const { session, words } = wordsOf("receiver", "aegis-128l");
    const expected = side.lanes.expect(session, HANG_MS);
    using other = otherSide([...words, String(port)]);
    const sender = await expected;
    expect(await other.line()).toContain("announced");
    other.child.kill("SIGSTOP");
    const sent = [1, 2, 3].map((i) => sender.send(i, 0, BYTES));
    expect(await sender.ended).toBe("broken");
    expect((await Promise.all(sent))[2]).toEqual({ ok: false, fault: "broken" });
  });

  test("that hangs can be closed", async () => {
    await using side = openSide({ bytes: BYTES });
    const { session, words } = wordsOf("sender", "none");
    using other = otherSide(words);
    const port = Number(await other.line());
    const receiver = await side.lanes.dial(session, HOST, port, HANG_MS);
    other.child.kill("SIGSTOP");
    const received = receiver.receive(1, 0, BYTES);
    receiver.cancel(1);
    expect(await received).toEqual({ ok: false, fault: "cancelled" });
    await receiver[Symbol.asyncDispose]();
    expect(await receiver.ended).toBe("closed");
  });
});
