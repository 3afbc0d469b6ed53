import { expect, test } from "bun:test";
import { runCli } from "../../src/cli/index.ts";
import { MODEL, serveRouter, spec } from "../api/router/serve.ts";
import { describeNative } from "../support/index.ts";
import { memoryIo } from "./memory-io.ts";

describeNative("ctl and a router", () => {
  const served = serveRouter();
  served.table.put(spec("w-1"));
  served.table.put(spec("w-2", { role: "prefill" }));

  async function ctl(...words: string[]) {
    const io = memoryIo({ columns: 200 });
    const code = await runCli(["ctl", ...words, "--api", served.server.url], io);
    return { code, out: io.outText(), err: io.errText() };
  }

  test("loads: a row for each worker", async () => {
    const { code, out } = await ctl("loads");
    expect(code).toBe(0);
    const [head, ...rows] = out
      .trimEnd()
      .split("\n")
      .map((line) => line.split(/ {2,}/));
    expect(head).toEqual(
      "worker rank model role state known gpu ram ssd requests prefill blocks of".split(" "),
    );
    const zeros = Array(6).fill("0");
    expect(rows).toEqual([
      ["w-1", "0", MODEL, "both", "live", "no", ...zeros, "1000"],
      ["w-2", "0", MODEL, "prefill", "live", "no", ...zeros, "1000"],
    ]);
    expect(JSON.parse((await ctl("loads", "--json", "--model", "x")).out)).toEqual({ workers: [] });
  });

  test("route: a question, which counts nothing", async () => {
    const { code, out } = await ctl("route", "--model", MODEL, "--tokens", "1,2,3");
    expect(code).toBe(0);
    expect(out).toMatch(/^worker +w-1$/m);
    expect(out).toMatch(/^prompt_tokens +3$/m);
    expect(out).toMatch(/^prefill +w-2$/m);
    expect(served.load.requests).toBe(0);
    const hashed = await ctl("route", "--model", MODEL, "--hashes", "0x10,7", "--json");
    expect(JSON.parse(hashed.out)).toMatchObject({ worker: "w-1", prompt_tokens: 32 });
    expect((await ctl("route", "--model", MODEL)).code).toBe(2);
    const nobody = await ctl("route", "--model", "x", "--tokens", "1");
    expect([nobody.code, nobody.err]).toEqual([7, expect.stringContaining("no worker serves x")]);
  });

  test("explain-route: candidates, who was none, and what decided", async () => {
    const body = { model: MODEL, tokens: [1, 2, 3], request_id: "a b" };
    await served.post("/v1/route", body);
    const { code, out } = await ctl("explain-route", "a b");
    expect(code).toBe(0);
    expect(out).toStartWith("w-1 by only_one (kv)\n");
    expect(out).toContain("not w-2: other_role\n");
    expect(out).toMatch(/^w-1 +[0-9.]+ +1 /m);
    expect((await ctl("explain-route", "nobody")).code).not.toBe(0);
  });
});
