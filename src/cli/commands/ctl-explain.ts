import { readFile } from "node:fs/promises";
import { HearthError, type Json, messageOf } from "../../core/index.ts";
import { defineCommand } from "../command.ts";
import {
  type Answer,
  Asking,
  BLOCKS_HELP,
  blockNameOrInput,
  listOf,
  membersOf,
  nameOf,
  READ_EXITS,
  readBlocks,
  readFlags,
  textOf,
} from "../ctl/index.ts";
import { optional, restArguments } from "../flags.ts";
import type { Io } from "../io.ts";
import { integer, text } from "../kinds.ts";
import { printJson, printRows } from "../output.ts";

const ROWS_MAX = 20;
const TOKEN_MAX = 2 ** 32 - 1;

const KEY_DIGITS = 64;
const NAMESPACE = /^[0-9a-f]{1,64}$/;

export const command = defineCommand({
  description: [
    "Tells what of a prompt is here and on which tier, and of the first block that is not why: " +
      "never stored, evicted when and by what, purged by whom, under another namespace, damaged. " +
      "The prompt is a list of blocks, or of tokens with the namespace that they are in.",
  ],
  arguments: { blocks: restArguments(blockNameOrInput, BLOCKS_HELP) },
  flags: {
    tokens: optional(text("FILE"), "the prompt's tokens, numbers with blanks or commas between"),
    namespace: optional(
      text("HEX"),
      "with --tokens: key of their namespace in hex, or how it begins (see `hearth ctl status`)",
    ),
    blockTokens: optional(integer({ min: 1, max: 65_536 }), "with --tokens: tokens of a block"),
    layer: optional(integer({ min: 0, max: TOKEN_MAX }), "with --tokens: this layer alone"),
    ...readFlags,
  },
  examples: [
    { words: "ctl explain 111 222 333", what: "three blocks, the first ones first" },
    {
      words: "ctl explain --tokens prompt.txt --block-tokens 64 --namespace $KEY",
      what: "a prompt",
    },
  ],
  exits: READ_EXITS,
  async run({ flags, arguments: { blocks }, ...rest }) {
    const given = await bodyOf(flags, blocks);
    await using asking = await Asking.open({ name: "ctl explain", flags, ...rest });
    const whole = await withNamespace(asking, given);
    if (!whole.ok) return whole.exit;
    const body = whole.document;
    const answer = await asking.post("/v1/explain", body);
    if (!answer.ok) return answer.exit;
    if (flags.json) printJson(rest.io, answer.document);
    else printExplanation(rest.io, answer.document);
    return "ok";
  },
});

interface Prompt {
  readonly tokens: string | null;
  readonly namespace: string | null;
  readonly blockTokens: number | null;
  readonly layer: number | null;
}

async function bodyOf(flags: Prompt, blocks: readonly (number | bigint | string)[]): Promise<Json> {
  const { tokens: file, namespace, blockTokens, layer } = flags;
  if (file === null) return { names: [...(await readBlocks(blocks))] };
  if (blocks.length > 0) throw new HearthError("USAGE", "give blocks or --tokens, not both");
  if (namespace === null || blockTokens === null) {
    throw new HearthError("USAGE", "--tokens needs --namespace and --block-tokens");
  }
  const key = namespace.toLowerCase();
  if (!NAMESPACE.test(key)) throw new HearthError("USAGE", "--namespace wants up to 64 hex digits");
  const tokens = await tokensIn(file);
  return {
    tokens,
    namespace: key,
    block_tokens: blockTokens,
    ...(layer === null ? {} : { layer }),
  };
}

/** With the whole key where only its beginning was given. Throws USAGE where several begin so. */
async function withNamespace(asking: Asking, body: Json): Promise<Answer> {
  const { namespace: start } = membersOf(body);
  const isWhole = typeof start !== "string" || start.length === KEY_DIGITS;
  if (isWhole) return { ok: true, document: body };
  const answer = await asking.get("/v1/status");
  if (!answer.ok) return answer;
  const { namespaces } = membersOf(answer.document);
  const keys = Array.isArray(namespaces) ? namespaces.map(String) : [];
  const [namespace, other] = keys.filter((key) => key.startsWith(start));
  if (namespace !== undefined && other === undefined) {
    return { ok: true, document: { ...(body as { [key: string]: Json }), namespace } };
  }
  const how = namespace === undefined ? "no namespace" : "more than one namespace";
  throw new HearthError("USAGE", `${how} of the agent begins with ${start}`, {
    fix: "see `hearth ctl status` for their keys",
  });
}

async function tokensIn(file: string): Promise<number[]> {
  let content: string;
  try {
    content = await readFile(file, "utf8");
  } catch (cause) {
    throw new HearthError("USAGE", `${file} cannot be read: ${messageOf(cause)}`, { cause });
  }
  const words = content.split(/[\s,[\]]+/).filter((word) => word !== "");
  return words.map((word) => {
    const token = Number(word);
    if (/^[0-9]{1,10}$/.test(word) && token <= TOKEN_MAX) return token;
    throw new HearthError("USAGE", `${file} holds "${word.slice(0, 40)}", which is no token`);
  });
}

/** The first blocks, those about the miss, and the miss in words. */
function printExplanation(io: Io, document: Json): void {
  const { leading, miss, peers } = membersOf(document);
  const blocks = listOf(document, "blocks");
  printRows(
    io,
    blocks.slice(0, ROWS_MAX).map(({ name, tier }, index) => ({
      index,
      block: nameOf(name),
      tier: tier === null ? "missing" : textOf(tier),
    })),
    false,
  );
  if (blocks.length > ROWS_MAX) io.out.write(`and ${blocks.length - ROWS_MAX} more\n`);
  io.out.write(`${textOf(leading)} of ${blocks.length} blocks hit in a row\n`);
  if (miss === null || miss === undefined) return;
  const { index, kind, text: words } = membersOf(miss);
  const block = blocks[Number(index)];
  const name = block === undefined ? "" : ` (${nameOf(block.name)})`;
  io.out.write(`block ${textOf(index)}${name}: ${textOf(kind)}: ${textOf(words)}\n`);
  if (peers === null || peers === undefined) return;
  const { promised, why_not } = membersOf(peers);
  io.out.write(`other hosts are believed to have ${textOf(promised)} from there on`);
  io.out.write(why_not === null ? "\n" : `: ${textOf(why_not)}\n`);
}
