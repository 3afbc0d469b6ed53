import { HearthError, type Random, randomBelow } from "../../../src/core/index.ts";
import { type ParsedRequest, TRACE_LIMITS } from "../../../src/workload/traces/index.ts";
import {
  LINE_FORMATS,
  type LineFormat,
  parseTraceLine,
} from "../../workload/traces/line-formats.ts";
import { traceLines } from "../corpus.ts";
import { must, type Saw, shapeOf, type Target } from "../target.ts";
import { bytesOf, digits, oneOf, textOf } from "./text-input.ts";

const KEYS = [
  "timestamp",
  "input_length",
  "output_length",
  "hash_ids",
  "block_size",
  "session_id",
  "turn",
  "calls",
  "t",
  "in",
  "out",
  "ttft",
  "type",
];
const VALUES = ["0", "-1", "1.5", "1e999", "null", '"a"', "[]", "[0,1,2]", "[[0,9]]", "{}", "true"];

/** An object with the right keys and values of any kind. */
function generate(random: Random): Uint8Array {
  const value = () =>
    random.u32() % 3 === 0 ? digits(1 + randomBelow(random, 24), random) : oneOf(VALUES, random);
  const fields = KEYS.filter(() => random.u32() % 2 === 0).map((key) => `"${key}": ${value()}`);
  return bytesOf(`{${fields.join(", ")}}`);
}

function isWhole(value: number): boolean {
  return Number.isSafeInteger(value) && value >= 0;
}

function checkRequest(request: ParsedRequest): void {
  must(request.atMs >= 0 && Number.isFinite(request.atMs), "a request has a time");
  must(isWhole(request.inputTokens) && isWhole(request.outputTokens), "tokens are whole");
  must(isWhole(request.blockTokens), "a block has whole tokens");
  must(request.names.length <= TRACE_LIMITS.requestBlocksMax, "blocks are bounded");
  must(request.turn === undefined || isWhole(request.turn), "a turn is a whole number");
}

function tryFormat(format: LineFormat, line: string, saw: Saw): void {
  try {
    const requests = parseTraceLine(format, line);
    for (const request of requests) checkRequest(request);
    saw(`${format} ok ${Math.min(2, requests.length)}`);
  } catch (error) {
    if (!(error instanceof HearthError) || error.code !== "TRACE_INVALID") throw error;
    // What is wrong stands at the end, behind what was found.
    saw(`${format} ${shapeOf(error.message.slice(-24))}`);
  }
}

/** A line of a trace, as each of the formats. The limit on time is for one of them. */
export function traces(): Target {
  return {
    name: "traces",
    corpus: traceLines(LINE_FORMATS.length),
    inputBytesMax: 512 * 1024,
    generate,
    run(input, saw) {
      const line = textOf(input.subarray(1));
      tryFormat(LINE_FORMATS[(input[0] ?? 0) % LINE_FORMATS.length]!, line, saw);
    },
  };
}
