export const GREETING_BYTES = 64;

const SIGNATURE_BYTES = 10;
const MAJOR_AT = 10;
const MINOR_AT = 11;
const MECHANISM_AT = 12;
const MECHANISM_BYTES = 20;

/** ZMTP 3.1 with the mechanism NULL: no identification, no encryption. */
export function encodeGreeting(): Uint8Array {
  const greeting = new Uint8Array(GREETING_BYTES);
  greeting[0] = 0xff;
  greeting[9] = 0x7f;
  greeting[MAJOR_AT] = 3;
  greeting[MINOR_AT] = 1;
  greeting.set(new TextEncoder().encode("NULL"), MECHANISM_AT);
  return greeting;
}

/** What is wrong with the greeting so far, in words; null: nothing. */
export function greetingFault(greeting: Uint8Array, length: number): string | null {
  if (length >= 1 && greeting[0] !== 0xff) return "it does not speak ZMTP";
  if (length >= SIGNATURE_BYTES && greeting[9] !== 0x7f) return "it does not speak ZMTP 3";
  if (length > MAJOR_AT && greeting[MAJOR_AT]! < 3) {
    return `it speaks ZMTP ${greeting[MAJOR_AT]}: 3 is needed`;
  }
  if (length < MECHANISM_AT + MECHANISM_BYTES) return null;
  const bytes = greeting.subarray(MECHANISM_AT, MECHANISM_AT + MECHANISM_BYTES);
  const end = bytes.indexOf(0);
  const mechanism = Buffer.from(bytes.subarray(0, end < 0 ? undefined : end)).toString("latin1");
  if (mechanism === "NULL") return null;
  const name = mechanism.replace(/[^A-Z0-9-]/g, "?");
  return `it wants the security mechanism ${name}: only NULL is spoken here`;
}

/** Of a whole greeting without faults. Later majors come back with their own numbers. */
export function greetingVersion(greeting: Uint8Array): { major: number; minor: number } {
  return { major: greeting[MAJOR_AT]!, minor: greeting[MINOR_AT]! };
}
