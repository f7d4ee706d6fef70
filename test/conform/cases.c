/* SPDX-License-Identifier: MIT
 *
 * cases.c: holds the engine, or the rules alone, to the table of cases: `cases mem|sqlite|rules FILE [NAME]`; the SQL
 * functions of PostgreSQL: `cases pgsql|pgsql-many FILE [NAME]`; or the extension: `cases ext FILE PATH_TO_SO [NAME]`.
 *
 * What it is: the reader of spec/cases.txt and the account of it. A case that fails is shown with its line, what was
 * expected and what was found. Besides the cases it checks the table: names are unique, and every legal move of
 * core/state.h is made by some case.
 *
 * Exit codes: 0 all passed, 1 some failed, 2 the program was called wrongly.
 */
#include "conform/cases.h"

#include <stdlib.h>

#define CASES_MAX 2000

struct account {
    const struct driver *driver; /* NULL: rules only, or SQL */
    const char *so;              /* the extension */
    bool pgsql;
    const char *only;
    char names[CASES_MAX][128];
    int cases, failed, left_out;
    bool made[SEMEL_ROW_COUNT][SEMEL_ROW_COUNT];
};

static bool known_name(struct account *account, const char *name)
{
    for (int i = 0; i < account->cases; i++)
        if (strcmp(account->names[i], name) == 0)
            return true;
    if (account->cases < CASES_MAX)
        memcpy(account->names[account->cases], name, strlen(name) + 1);
    return false;
}

static void run_case(struct account *account, const struct kase *kase)
{
    struct finding finding = {.n = 0};
    struct move move = {SEMEL_ROW_ABSENT, SEMEL_ROW_ABSENT, false};
    bool ran;

    if (known_name(account, kase->name))
        differ(&finding, "another case has the same name");
    account->cases++;
    if (account->only != NULL && strcmp(account->only, kase->name) != 0)
        return;
    ran = account->so != NULL       ? case_run_ext(kase, account->so, &finding, &move)
          : account->pgsql          ? case_run_pgsql(kase, &finding, &move)
          : account->driver != NULL ? case_run_engine(kase, account->driver, &finding, &move)
                                    : case_run_rules(kase, &finding, &move);
    account->left_out += !ran;
    if (finding.differences > 0) {
        account->failed++;
        printf("line %d: %s\n%s", kase->line, kase->name, finding.text);
    } else if (ran && move.made) {
        account->made[move.from][move.to] = true;
    }
}

/* Every legal move is made by a case; every move that was made is legal. */
static void check_moves(struct account *account)
{
    for (unsigned from = 0; from < SEMEL_ROW_COUNT; from++)
        for (unsigned to = 0; to < SEMEL_ROW_COUNT; to++) {
            const char *a = semel__row_status_name((enum semel_row_status)from),
                       *b = semel__row_status_name((enum semel_row_status)to);
            bool legal = semel__move_legal((enum semel_row_status)from, (enum semel_row_status)to);
            bool made = account->made[from][to];
            if (legal && !made)
                printf("no case makes the move %s -> %s\n", a, b);
            if (!legal && made && from != to)
                printf("the move %s -> %s is made and is not legal\n", a, b);
            account->failed += legal != made && from != to;
        }
}

static bool read_cases(struct account *account, FILE *file)
{
    char line[2000], complaint[300];
    struct kase kase;
    bool is;

    for (kase.line = 1; fgets(line, sizeof line, file) != NULL; kase.line++) {
        if (strchr(line, '\n') == NULL && !feof(file)) {
            printf("line %d: longer than %zu bytes\n", kase.line, sizeof line - 2);
            return false;
        }
        if (!case_parse(line, &kase, &is, complaint, sizeof complaint)) {
            printf("line %d: %s\n", kase.line, complaint);
            account->failed++;
            account->cases++;
        } else if (is) {
            run_case(account, &kase);
        }
    }
    return true;
}

static int usage(const char *program)
{
    fprintf(stderr, "usage: %s rules|pgsql|pgsql-many", program);
    for (const struct driver *const *driver = world_drivers; *driver != NULL; driver++)
        fprintf(stderr, "|%s", (*driver)->name);
    fprintf(stderr, " FILE [NAME]\n       %s ext FILE PATH_TO_SO [NAME]\n", program);
    return 2;
}

int main(int argc, char **argv)
{
    static struct account account;
    FILE *file = argc > 2 ? fopen(argv[2], "re") : NULL;
    bool read;

    account.driver = argc > 1 ? world_driver_named(argv[1]) : NULL;
    if (argc > 3 && strcmp(argv[1], "ext") == 0)
        account.so = argv[3];
    account.pgsql = argc > 1 && (strcmp(argv[1], "pgsql") == 0 || strcmp(argv[1], "pgsql-many") == 0);
    if (account.pgsql && strcmp(argv[1], "pgsql-many") == 0)
        case_pgsql_by_many();
    if (file == NULL ||
        (account.driver == NULL && account.so == NULL && !account.pgsql && strcmp(argv[1], "rules") != 0))
        return usage(argv[0]);
    account.only = argc > (account.so != NULL ? 4 : 3) ? argv[argc - 1] : NULL;
    read = read_cases(&account, file);
    fclose(file);
    if (account.so != NULL && account.only == NULL && !case_ext_account())
        account.failed++;
    if (account.pgsql && account.only == NULL && !case_pgsql_account())
        account.failed++;
    if (account.driver != NULL && account.only == NULL)
        check_moves(&account);
    if (account.left_out > 0 && account.so == NULL && !account.pgsql)
        printf("%d cases are about the store alone and were left out\n", account.left_out);
    printf("%d cases, %d failed\n", account.cases, account.failed);
    return read && account.failed == 0 && account.cases > 0 ? 0 : 1;
}
