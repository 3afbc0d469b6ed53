/** A token of most vocabularies stands for about so many bytes. */
const BYTES = 4;

/**
 * A token for each four bytes of a prompt: for models without a tokenizer. Equal beginnings have
 * equal tokens, so what was predicted is found; engines report other numbers.
 */
export function roughTokens(text: string): Uint32Array {
  const bytes = new TextEncoder().encode(text);
  const whole = Math.floor(bytes.length / BYTES);
  const tokens = new Uint32Array(Math.ceil(bytes.length / BYTES));
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let i = 0; i < whole; i++) tokens[i] = view.getUint32(i * BYTES, true);
  for (let i = whole * BYTES; i < bytes.length; i++) {
    tokens[whole] = (tokens[whole]! | (bytes[i]! << ((i % BYTES) * 8))) >>> 0;
  }
  return tokens;
}

/** How many there would be. */
export function roughCount(bytes: number): number {
  return Math.ceil(bytes / BYTES);
}
