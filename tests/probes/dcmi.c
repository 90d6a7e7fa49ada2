/* A driver of Ascend's that stands in: the functions of DCMI that are asked, with their prototypes and structures as
   the reference of Ascend 910B has them. Two cards of one chip; the second one is a board for inference, which says less.
   Answers are those that `npu-smi info` prints in Ascend's documentation. */

#include <string.h>

#define OK 0
#define NOT_PERMITTED (-8002)
#define NOT_EXIST (-8008)
#define NOT_SUPPORT (-8255)

struct dcmi_chip_info {
    unsigned char chip_type[32];
    unsigned char chip_name[32];
    unsigned char chip_ver[32];
    unsigned int aicore_cnt;
};
struct dcmi_die_id {
    unsigned int soc_die[5];
};
struct dcmi_hbm_info {
    unsigned long long memory_size;
    unsigned int freq;
    unsigned long long memory_usage;
    int temp;
    unsigned int bandwith_util_rate;
};
struct dcmi_ecc_info {
    int enable_flag;
    unsigned int single_bit_error_cnt;
    unsigned int double_bit_error_cnt;
    unsigned int total_single_bit_error_cnt;
    unsigned int total_double_bit_error_cnt;
    unsigned int single_bit_isolated_pages_cnt;
    unsigned int double_bit_isolated_pages_cnt;
};
enum dcmi_die_type { NDIE, VDIE };
enum dcmi_device_type { DDR, SRAM, HBM, NPU };

/* What a test changes. */
int is_begun, calls, alarm_level, double_bits = 1, is_gone;

static const unsigned int DIE[5] = {0x42C711D4, 0x20B03704, 0x4A10C8D4, 0x14CC040A, 0xD2102003};

static int asked(int card_id, int device_id)
{
    calls++;
    return !is_begun || is_gone || (card_id != 0 && card_id != 5) || device_id ? NOT_EXIST : OK;
}

int dcmi_init(void)
{
    is_begun = 1;
    return OK;
}

int dcmi_get_card_list(int *card_num, int *card_list, int list_len)
{
    if (list_len < 2) return NOT_SUPPORT;
    *card_num = 2, card_list[0] = 0, card_list[1] = 5;
    return OK;
}

int dcmi_get_device_id_in_card(int card_id, int *device_id_max, int *mcu_id, int *cpu_id)
{
    *device_id_max = 1, *mcu_id = 1, *cpu_id = -1;
    return OK;
}

int dcmi_get_device_chip_info(int card_id, int device_id, struct dcmi_chip_info *chip_info)
{
    memset(chip_info, 0, sizeof *chip_info);
    strcpy((char *)chip_info->chip_type, "Ascend");
    strcpy((char *)chip_info->chip_name, card_id ? "310P3" : "910B3");
    chip_info->aicore_cnt = 20;
    return asked(card_id, device_id);
}

int dcmi_get_device_die_v2(int card_id, int device_id, enum dcmi_die_type input_type, struct dcmi_die_id *die_id)
{
    if (card_id) return NOT_SUPPORT;
    for (int at = 0; at < 5; at++) die_id->soc_die[at] = input_type == VDIE ? DIE[at] : 0;
    return asked(card_id, device_id);
}

int dcmi_get_device_utilization_rate(int card_id, int device_id, int input_type, unsigned int *utilization_rate)
{
    if (input_type == 13 && card_id) return NOT_SUPPORT;
    *utilization_rate = input_type == 13 ? 87 : input_type == 2 ? 31 : 99;
    return asked(card_id, device_id);
}

int dcmi_get_device_hbm_info(int card_id, int device_id, struct dcmi_hbm_info *hbm_info)
{
    struct dcmi_hbm_info found = {65536, 1600, 3384, 48, 12};
    if (card_id) return NOT_SUPPORT;
    *hbm_info = found;
    return asked(card_id, device_id);
}

int dcmi_get_device_power_info(int card_id, int device_id, int *power)
{
    if (card_id) return NOT_PERMITTED;
    *power = 935;
    return asked(card_id, device_id);
}

int dcmi_get_device_temperature(int card_id, int device_id, int *temperature)
{
    *temperature = 46;
    return asked(card_id, device_id);
}

int dcmi_get_device_ecc_info(int card_id, int device_id, enum dcmi_device_type input_type, struct dcmi_ecc_info *info)
{
    struct dcmi_ecc_info found = {1, 7, double_bits, 70, 10, 0, 0};
    if (card_id || input_type != HBM) return NOT_SUPPORT;
    *info = found;
    return asked(card_id, device_id);
}

int dcmi_get_device_health(int card_id, int device_id, unsigned int *health)
{
    *health = alarm_level;
    return asked(card_id, device_id);
}
