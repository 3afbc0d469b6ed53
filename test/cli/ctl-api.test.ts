import { expect, test } from "bun:test";
import { runCli } from "../../src/cli/index.ts";
import { decodeCommand } from "../../src/control/index.ts";
import { holdOf } from "../api/fake-control.ts";
import { serve } from "../api/serve.ts";
import { memoryIo } from "./memory-io.ts";

const KEY = "ab".repeat(32);

async function ctl(url: string, ...words: string[]) {
  const io = memoryIo();
  const code = await runCli(["ctl", ...words, "--api", url], io);
  return { code, out: io.outText(), err: io.errText() };
}

test("every command is one that agents read, by either encoding", async () => {
  const { url, told } = serve();
  const { control } = told;
  const commands = [
    ...["pin -1", "pin --ttl 1h --owner a 18446744073709551615", `unpin ${KEY}/3`],
    ...["retain --priority 9 --idle 5m 1", "prune -9223372036854775808", "think 1 2"],
    ...["think --purge 1", "pause --lease s --ttl 1m 6", "pause --lease s 6", "renew s --ttl 2h"],
    ...["revoke s", `warm ${KEY}`, "warm --gpu --source node-2 1", "flush"],
  ];
  for (const words of commands) {
    for (const encoding of ["json", "msgpack"]) {
      const { code, err } = await ctl(url, ...words.split(" "), "--encoding", encoding);
      expect({ words, encoding, code, err }).toEqual({ words, encoding, code: 0, err: "" });
      const { body, contentType } = control.submitted.at(-1)!;
      expect(decodeCommand(body, contentType)).toMatchObject({ ok: true, unnamed: [] });
    }
  }
  expect(control.submitted).toHaveLength(2 * commands.length);
});

test("every question is one that agents answer", async () => {
  const { url, told } = serve();
  const { control } = told;
  control.all = Array.from({ length: 2_500 }, (_, at) => holdOf(at + 1));
  const pins = await ctl(url, "pins", "--limit", "10000", "--owner", "somebody");
  expect(pins.out.split("\n").filter((line) => line.includes("somebody"))).toHaveLength(2_500);
  expect(pins.out).toContain("owner  100B of 256GiB");
  const questions = [
    ...["pins --soft", "leases --after 7", "tree", "tree -1 --depth 0 --limit 5 --after x"],
    ...[`tree ${KEY}/3 --fields digest,tiers`, "explain 1 -2 18446744073709551615", "events"],
    ...["events --after 5", "status"],
  ];
  for (const words of questions) {
    for (const json of [[], ["--json"]]) {
      const { code, out } = await ctl(url, ...words.split(" "), ...json);
      expect({ words, code }).toEqual({ words, code: 0 });
      if (json.length > 0) for (const line of out.trimEnd().split("\n")) if (line) JSON.parse(line);
    }
  }
  expect(control.trees.at(-1)).toMatchObject({ root: { given: `${KEY}/3` }, depthMax: 16 });
  const unknown = await ctl(url, "tree", "--fields", "poem");
  expect(unknown).toMatchObject({ code: 7, out: "" });
  expect(unknown.err).toStartWith("hearth ctl tree: unknown field poem: use digest, ");
  control.treePage = { blocks: [], next: null, missing: true };
  expect((await ctl(url, "tree", "1")).code).toBe(7);
});
