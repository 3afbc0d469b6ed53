import { plain } from "./plain.ts";

const UNAUTHORIZED = 401;

/** What an agent refused over HTTP; of a missing token what is to be done here, not there. */
export function refusalText(
  { tokenFile }: { readonly tokenFile: string | null },
  status: number | null,
  why: string,
): string {
  if (status !== UNAUTHORIZED) return plain(why, Infinity);
  return tokenFile === null
    ? "the agent wants a bearer token: give --token-file FILE"
    : `the agent does not take the token in ${tokenFile}: give --token-file with another`;
}
