// What cases are told, and how they tell what came of them: one line of JSON a case.
export const SITE = JSON.parse(process.env.CLIENTS_SITE);

export async function run(...cases) {
  for (const one of cases) {
    let error = "";
    try {
      await one();
    } catch (failure) {
      console.error(failure);
      error = `${failure?.name}: ${failure?.message}`.slice(0, 600);
    }
    console.log(JSON.stringify({ case: one.name, error }));
  }
}
