/**
 * Cuts a text in front of special tokens and behind them, so that each piece can be tokenised alone
 * and remembered: of a conversation that goes on only its latest messages are new.
 */
export type PieceCutter = (text: string) => string[];

type Fields = Readonly<Record<string, unknown>>;

/** What these do with a piece does not depend on what stands before it. */
const CONTEXT_FREE: ReadonlySet<string> = new Set([
  "ByteLevel",
  "Split",
  "Digits",
  "Punctuation",
  "Whitespace",
  "WhitespaceSplit",
  "NFC",
  "NFKC",
  "NFD",
  "NFKD",
  "Lowercase",
  "StripAccents",
]);

/**
 * Null where a piece alone might have other tokens than within the text: the first piece is treated
 * apart, or special tokens take blanks beside them.
 */
export function createPieceCutter(definition: Fields): PieceCutter | null {
  if (!isContextFree(definition.normalizer) || !isContextFree(definition.pre_tokenizer))
    return null;
  const added = Array.isArray(definition.added_tokens) ? (definition.added_tokens as Fields[]) : [];
  if (added.some(({ lstrip, rstrip, single_word }) => lstrip || rstrip || single_word)) return null;
  // Those that are looked for in the text as it is are found first, whatever is around them.
  const exact = added.filter(({ normalized }) => definition.normalizer === null || !normalized);
  const texts = exact.map(({ content }) => content).filter((text) => typeof text === "string");
  const special = texts.filter((text) => text !== "");
  if (special.length === 0) return null;
  // The longest one that fits is taken, as tokenizers do.
  special.sort((a, b) => b.length - a.length);
  const pattern = new RegExp(`(${special.map((text) => RegExp.escape(text)).join("|")})`);
  return (text) => text.split(pattern).filter((piece) => piece !== "");
}

function isContextFree(part: unknown): boolean {
  if (part === null || part === undefined) return true;
  const { type, add_prefix_space, normalizers, pretokenizers } = part as Fields;
  if (type === "Sequence") {
    const parts = (normalizers ?? pretokenizers) as unknown;
    return Array.isArray(parts) && parts.every(isContextFree);
  }
  if (typeof type !== "string" || !CONTEXT_FREE.has(type)) return false;
  return type !== "ByteLevel" || add_prefix_space === false;
}
