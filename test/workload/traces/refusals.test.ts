import { describe, expect, test } from "bun:test";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../../scripts/lib/paths.ts";
import { HearthError } from "../../../src/core/index.ts";
import { openTrace, TRACE_LIMITS } from "../../../src/workload/traces/index.ts";
import { tempDir } from "../../support/index.ts";
import { allRequests } from "./tally.ts";

const folder = tempDir();
const fixture = (name: string) => join(ROOT, "test/data/traces", name);
const GOOD = '{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1,2]}';

async function refusalOf(path: string): Promise<HearthError> {
  const outcome = await openTrace(path)
    .then(allRequests)
    .catch((thrown: unknown) => thrown);
  if (!(outcome instanceof HearthError)) throw new Error(`${path} was not refused: ${outcome}`);
  expect(outcome.code).toBe("TRACE_INVALID");
  return outcome;
}

let files = 0;
async function refusalOfText(text: string | Uint8Array): Promise<{ path: string; text: string }> {
  const path = join(folder, `${files++}.jsonl`);
  await Bun.write(path, text);
  return { path, text: (await refusalOf(path)).message };
}

const event = (replay: string) =>
  '{"event":{"schema":"dynamo.request.trace.v1","event_type":"request_end",' +
  `"request":{"output_tokens":1,"request_received_ms":1,"replay":${replay}}}}`;
const session = (requests: string) =>
  `{"id":"a","block_size":64,"tool_tokens":1,"system_tokens":1,"requests":[${requests}]}`;
const call = (ids: string, tokens = 128) => `{"t":0,"in":${tokens},"out":1,"hash_ids":[${ids}]}`;

/** The text of a file, the line at fault, and words that must be said about it. */
const BAD_LINES: readonly (readonly [string, number, RegExp])[] = [
  ["{", 1, /not JSON/],
  ["[1,2]", 1, /the line is not a JSON object/],
  ["null", 1, /the line is not a JSON object/],
  ['{"a":1}', 1, /unknown trace format/],
  [`${GOOD}\n\n{"timestamp":0`, 3, /not JSON/],
  [`${GOOD}\n${GOOD.replace("600", "6e400")}`, 2, /input_length is null, not a whole number/],
  [`${GOOD}\n${GOOD.replace("600", '"600"')}`, 2, /input_length is "600", not a whole number/],
  [`${GOOD}\n${GOOD.replace("600", "-1")}`, 2, /input_length is -1/],
  [`${GOOD}\n${GOOD.replace("600", "600.5")}`, 2, /input_length is 600\.5/],
  [`${GOOD}\n${GOOD.replace("600", "9007199254740993")}`, 2, /input_length is 9007199254740992/],
  [GOOD.replace("600", "6000"), 1, /hash_ids has 2 entries, but 6000 tokens make 12 blocks of 512/],
  [GOOD.replace("[1,2]", "[1,9007199254740993]"), 1, /hash_ids\[1\] is 9007199254740992/],
  [GOOD.replace("[1,2]", '[1,"2"]'), 1, /hash_ids\[1\] is "2"/],
  [GOOD.replace("[1,2]", "[1,null]"), 1, /hash_ids\[1\] is null/],
  [GOOD.replace(":0", ':"0"'), 1, /timestamp is "0", not a time/],
  [GOOD.replace(":0", ":-5"), 1, /timestamp is -5/],
  [GOOD.replace("output_length", "out"), 1, /output_length is nothing/],
  [`${GOOD}\n${GOOD.replace("[1,2]", "[3,2]")}`, 2, /block 1 of the prompt, 2, followed another/],
  [GOOD.replace("[1,2]", "[1,1]"), 1, /followed another block before/],
  [`${GOOD}\n${GOOD.replace("{", '{"block_size":16,')}`, 2, /hash_ids has 2 entries/],
  [`${GOOD}\n${GOOD.replace("{", '{"block_size":300,')}`, 2, /blocks of 300 tokens, but of 512/],
  [GOOD.replace("{", '{"block_size":0,'), 1, /block_size is 0/],
  [GOOD.replace("{", '{"session_id":7,'), 1, /session_id is 7, not a short text/],
  [session(call("0")), 1, /decodes to 0 ids, not the 2/],
  [session(call("0,1,2,3")), 1, /is not a run code: it has an even number/],
  [session(call("0,1,3")), 1, /decodes to more than the 2 blocks/],
  [session(call("0,1,1")), 1, /decodes to 1 ids, not the 2/],
  [session(call("2")), 1, /repeats 2 ids of 0 for 2 blocks/],
  [session(call("0,4294967295,2")), 1, /ids beyond 32 bits/],
  [session(call("0,1,200000", 12_800_000)), 1, /200000 blocks, more than 131072/],
  [
    `${session(call("1,2"))}\n${session(call("1,2,3"))}`,
    2,
    /hash_ids of call 0 has 3 entries, but 128 tokens make 2/,
  ],
  [session('{"type":"subagent","t":0}'), 1, /requests is not a list/],
  [session(call("1,2")).replace("64", "16"), 1, /hash_ids of call 0/],
  [
    event('{"trace_block_size":16,"input_length":20,"input_sequence_hashes":[1]}'),
    1,
    /make 2 blocks/,
  ],
  [
    event(
      '{"trace_block_size":16,"input_length":9,"input_sequence_hashes":[18446744073709551616]}',
    ),
    1,
    /input_sequence_hashes\[0\] is 18446744073709551616, not a 64-bit hash/,
  ],
  [event("null"), 1, /event\.request\.replay is not a JSON object/],
  ['{"event":{"schema":"dynamo.request.trace.v2"}}', 1, /not "dynamo\.request\.trace\.v1"/],
  ["TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,4808", 2, /is not a row of/],
  ["TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,9999999999,1", 2, /more than/],
];

describe("a bad line is refused with file, line and reason", () => {
  test.each(BAD_LINES)("%s", async (content, line, words) => {
    const { path, text } = await refusalOfText(content);
    expect(text).toStartWith(`${path}:${line}: `);
    expect(text).toMatch(words);
    expect(text.length).toBeLessThan(path.length + 250);
  });
});

describe("a bad file is refused with a message", () => {
  test("one that is not there, is empty or has no request", async () => {
    expect((await refusalOf(join(folder, "none"))).message).toContain("cannot be opened");
    expect((await refusalOfText("")).text).toContain("has no request");
    expect((await refusalOfText("\n\n  \n")).text).toContain("has no request");
  });

  test("a folder that is not a RAGPulse release", async () => {
    expect((await refusalOf(folder)).message).toContain("is a folder without 0_trace.jsonl.gz");
  });

  test("the lengths of prompt pieces without the requests", async () => {
    const { message } = await refusalOf(fixture("ragpulse/2_passages.jsonl.gz"));
    expect(message).toContain("has no requests: give 0_trace.jsonl.gz of the same folder");
  });

  test("RAGPulse requests without the lengths of their pieces", async () => {
    const release = join(folder, "release");
    mkdirSync(release);
    await Bun.write(
      join(release, "0_trace.jsonl.gz"),
      Bun.file(fixture("ragpulse/0_trace.jsonl.gz")),
    );
    expect((await refusalOf(release)).message).toContain("put 1_sys_prompt.jsonl.gz");
    for (const file of ["1_sys_prompt", "3_history", "4_user_input", "5_web_search"])
      await Bun.write(
        join(release, `${file}.jsonl.gz`),
        Bun.file(fixture(`ragpulse/${file}.jsonl.gz`)),
      );
    await Bun.write(join(release, "2_passages.jsonl"), '{"passage_id":1,"token_length":4}\n');
    expect((await refusalOf(release)).message).toMatch(
      /0_trace\.jsonl\.gz:\d+: passages_ids \d+ is not in 2_passages\.jsonl/,
    );
  });

  test.each(["mooncake_toolmix.jsonl.gz", "claude_sessions.jsonl.zst"])(
    "%s cut short or damaged",
    async (name) => {
      const bytes = await Bun.file(fixture(name)).bytes();
      for (const length of [5, 20, bytes.length >> 1, bytes.length - 1]) {
        const { text } = await refusalOfText(bytes.slice(0, length));
        expect(text).toMatch(/:\d+: cannot be read or decompressed: /);
      }
      bytes.fill(0xff, 100, 140);
      expect((await refusalOfText(bytes)).text).toMatch(/:\d+: /);
    },
  );

  test("a line that never ends, though it packs small", async () => {
    const endless = Buffer.alloc(TRACE_LIMITS.lineBytesMax + 1_000, "7");
    const { path, text } = await refusalOfText(Bun.gzipSync(endless));
    expect(text).toBe(`${path}:1: the line exceeds ${TRACE_LIMITS.lineBytesMax} bytes`);
  });

  test("bytes that are no text", async () => {
    const { path, text } = await refusalOfText(Uint8Array.of(0x7b, 0xff, 0xfe, 0x7d));
    expect(text).toBe(`${path}:1: the line is not UTF-8`);
  });
});

describe("native blocks", () => {
  const composed = fixture("claude_composed_512.jsonl.gz");
  const refused = async (file: string, nativeBlocks: string) =>
    expect(openTrace(file, { nativeBlocks }).then(allRequests)).rejects;

  test("need a composed trace and its sessions", async () => {
    await (await refused(composed, composed)).toThrow(/holds no sessions/);
    const runs = fixture("claude_sessions.runs.jsonl.gz");
    await (await refused(fixture("azure.csv"), runs)).toThrow(/only a composed trace has sessions/);
    await (await refused(fixture("mooncake.jsonl"), runs)).toThrow(/:1: no session undefined in/);
  });

  test("need the very sessions it was made from", async () => {
    const other = join(folder, "other-sessions.jsonl");
    const text = new TextDecoder().decode(
      Bun.gunzipSync(await Bun.file(fixture("claude_sessions.runs.jsonl.gz")).bytes()),
    );
    await Bun.write(other, text.replace('"out":', '"out":1'));
    await (await refused(composed, other)).toThrow(/has other lengths in the sessions file/);
    await Bun.write(other, text.split("\n")[0]!);
    await (await refused(composed, other)).toThrow(/no session trace_\d+ in/);
  });
});
