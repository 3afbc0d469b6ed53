import type { ValidationError } from "elysia";

/** Of the framework's error no more than is looked at here. */
type Invalid = Pick<ValidationError, "type" | "valueError">;

interface Wanted {
  readonly minimum?: number;
  readonly maximum?: number;
  readonly anyOf?: readonly { readonly const?: unknown }[];
}

const PATH_CHARACTERS_MAX = 100;

/** The first thing, in a line: the framework's own words repeat the whole request. */
export function whatIsWrong({ type, valueError }: Invalid, url: string): string {
  const { path = "", message = "not what it should be", schema, value } = valueError ?? {};
  const where = type === "property" ? "query" : type;
  const names = path === "" ? namesOf(url, value) : [path.slice(1, PATH_CHARACTERS_MAX)];
  const words = schema === undefined ? null : wordsOf(schema as Wanted);
  if (names.length > 0 && words !== null) return `${where}: ${names.join(" or ")} is ${words}`;
  return `${where}${path.slice(0, PATH_CHARACTERS_MAX)}: ${message}`;
}

/** What is out of range comes without its name: members of the query with this number. */
function namesOf(url: string, value: unknown): string[] {
  const members = URL.parse(url)?.searchParams ?? new URLSearchParams();
  const isIt = (text: string) => text !== "" && Number(text) === value;
  return [...members].flatMap(([name, text]) =>
    isIt(text) ? [name.slice(0, PATH_CHARACTERS_MAX)] : [],
  );
}

/** Null: the framework's own words are as good. */
function wordsOf({ minimum, maximum, anyOf = [] }: Wanted): string | null {
  if (minimum !== undefined) {
    const to = maximum === undefined ? "on" : `to ${maximum}`;
    return `a whole number from ${minimum} ${to}`;
  }
  const choices = anyOf.map((one) => one.const).filter((one) => one !== undefined);
  return choices.length === 0 ? null : `one of ${choices.join(", ")}`;
}
